#!/usr/bin/env python3
"""What `--warm=restart` costs a first start: benches/cold_start.py LAUNCHER PYTHON [PAIRS]

Starts jobs of 2 ranks with `--warm=off` and `--warm=restart` in turns (PAIRS of each, at least 2, default 60), until
both ranks have made an optimizer step. PYTHON has torch. Prints both medians, and the mean of the differences with its
standard error, in ms.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

SCRIPT = """
import os, sys, time
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(8, 64)).sum().backward()
optimizer.step()
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
    file.write(repr(time.monotonic()))
"""


def first_step(launcher, python, warm, folder):
    """Seconds from the launcher's start to the first optimizer step of the last rank."""
    script = os.path.join(folder, "train.py")
    with open(script, "w") as file:
        file.write(SCRIPT)
    path = os.path.dirname(os.path.abspath(python)) + os.pathsep + os.environ["PATH"]
    began = time.monotonic()
    subprocess.run(
        [launcher, "--standalone", "--nproc-per-node=2", "--warm=" + warm, script, folder],
        check=True,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ, PATH=path, OMP_NUM_THREADS="1"),
    )
    ends = []
    for rank in ("0", "1"):
        with open(os.path.join(folder, rank)) as file:
            ends.append(float(file.read()))
    return max(ends) - began


def main():
    launcher, python = sys.argv[1:3]
    pairs = int(sys.argv[3]) if len(sys.argv) > 3 else 60
    taken = {"off": [], "restart": []}
    with tempfile.TemporaryDirectory() as folder:
        # The first pair reads files from disk.
        for number in range(pairs + 1):
            for warm in ("off", "restart") if number % 2 else ("restart", "off"):
                seconds = first_step(launcher, python, warm, folder)
                taken[warm] += [1000 * seconds] if number else []
                # What a job leaves to the kernel is over.
                time.sleep(0.3)
    for warm, all_of_them in taken.items():
        print(
            "--warm=%-8s %7.0f ms (median of %d; %.0f .. %.0f)"
            % (warm, statistics.median(all_of_them), pairs, min(all_of_them), max(all_of_them))
        )
    differences = [restart - off for off, restart in zip(taken["off"], taken["restart"])]
    error = statistics.stdev(differences) / len(differences) ** 0.5
    print("difference       %7.0f ms (mean; standard error %.0f)" % (statistics.mean(differences), error))


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main()
