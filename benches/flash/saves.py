#!/usr/bin/env python3
"""How long a save blocks training: ours beside torch's own and DLRover 0.6.1, on the same state in one run.

    benches/flash/saves.py [--mib 512] [--turns 10] [--rounds 2] [--launcher target/dist/dlrover-run]
                           [--python PYTHON] [--upstream PYTHON] [--json FILE]

PYTHON has torch (default: TORCH_PYTHON, else this interpreter). UPSTREAM is the interpreter of a virtual environment
of its own with `dlrover[k8s]==0.6.1 torch==2.4.1 'numpy<2'`; without it its rows are missing, and the output says so.
Ours runs under LAUNCHER, with its saver. The state is fp32 tensors of 4 MiB on the processor; torch has one thread.

In a turn each way saves once, so that the load of the host meets all alike; rounds of the two processes alternate.
"""

import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parent.parent

# Rows by name, and the goals: which row over which is to be at most what.
ROWS = [
    ("ours", "ours, MEMORY, threads as always"),
    ("ours one thread", "ours, MEMORY, 1 thread"),
    ("ours first", "ours, first MEMORY after prepare"),
    ("ours during persist", "ours, MEMORY during a persist"),
    ("ours disk call", "ours, DISK: the call"),
    ("ours on disk", "ours, DISK: until on disk, with fsync"),
    ("memcpy", "memcpy into warm shared memory, 1 thread"),
    ("memcpy two threads", "memcpy into warm shared memory, 2 threads"),
    ("dcp", "torch DCP async_save, default stager, thread"),
    ("dcp kept", "torch DCP async_save, kept stager"),
    ("dcp on disk", "torch DCP, default: until written"),
    ("upstream", "DLRover 0.6.1, MEMORY"),
    ("upstream first", "DLRover 0.6.1, first MEMORY"),
    ("upstream disk call", "DLRover 0.6.1, DISK: the call"),
    ("upstream on disk", "DLRover 0.6.1, DISK: until its tracker, no fsync"),
    ("restart without", "SIGKILL of a worker to the first line of the next, no checkpoint"),
    ("restart with", "the same while a save is written to disk"),
    ("load", "ours, load from memory after it"),
]
GOALS = [
    ("ours one thread", "upstream", 0.7),
    ("ours one thread", "dcp", 0.8),
    ("ours one thread", "dcp kept", 1.0),
    ("ours one thread", "memcpy", 1.6),
    ("ours", "memcpy two threads", 1.3),
    ("ours first", "ours", 1.5),
    ("ours during persist", "ours", 2.0),
    ("ours on disk", "upstream on disk", 1.0),
]
# Seconds: what a save on its way to disk may add to a restart; a load from memory, and more for each tensor.
RESTART_GOAL = 0.05
LOAD_GOAL, LOAD_GOAL_PER_TENSOR = 0.02, 1e-6


def run_side(command, variables, folder, arguments=()):
    """Runs one process of a side; returns its figures by row, counts, and versions. None if it fails."""
    result = folder / "result.json"
    # The trackers of an earlier round name steps that this one has not reached.
    shutil.rmtree(folder)
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DLROVER_"))}
    environment.update(variables, OMP_NUM_THREADS="1")
    command = [*command, str(folder), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    if done.returncode or not result.exists():
        print("%s exited with %d: %s" % (command[0], done.returncode, done.stderr[-2000:]), file=sys.stderr)
        return None
    return json.loads(result.read_text())


def add(sides, found):
    for name, seconds in found["seconds"].items():
        sides["seconds"].setdefault(name, []).extend(seconds)
    for name, count in found["counts"].items():
        sides["counts"][name] = sides["counts"].get(name, 0) + count
    sides["versions"].update(found["versions"])


def measure(options, folder):
    sides = {"seconds": {}, "counts": {}, "versions": {}, "missing": []}
    sizes = [str(options.mib), str(options.turns)]
    has_upstream = options.upstream is not None
    if not has_upstream:
        sides["missing"].append("DLRover 0.6.1: --upstream names no interpreter that has it")
    for number in range(options.rounds):
        launcher = [str(options.launcher.resolve()), "--standalone", str(HERE / "saves_here.py")] + sizes
        paths = {"PYTHON_EXEC": options.python, "PYTHONPATH": str(TREE / "packaging/wheel/python")}
        found = run_side(launcher, paths, folder)
        if found is None:
            sys.exit("ours cannot be measured")
        add(sides, found)
        for way in ("without", "with"):
            again = launcher[:2] + ["--max-restarts=%d" % options.turns, str(HERE / "saves_restart.py")] + sizes
            found = run_side(again, paths, folder, [way])
            if found is None:
                sys.exit("a restart cannot be measured")
            add(sides, found)
        if has_upstream:
            own = {"TMPDIR": str(folder), "TORCHELASTIC_RUN_ID": "saves-%d-%d" % (os.getpid(), number)}
            found = run_side([options.upstream, str(HERE / "saves_upstream.py")] + sizes, own, folder)
            for left in pathlib.Path("/dev/shm").glob(own["TORCHELASTIC_RUN_ID"] + "_*"):
                left.unlink()
            if found is None:
                sides["missing"].append("DLRover 0.6.1: it failed, as said on standard error")
                has_upstream = False
            else:
                add(sides, found)
    return sides


def summary(seconds):
    return {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds), "n": len(seconds)}


def report(options, sides, load):
    rows = {name: summary(sides["seconds"][name]) for name, _ in ROWS if sides["seconds"].get(name)}
    ratios = []
    for one, other, goal in GOALS:
        if one in rows and other in rows:
            ratio = rows[one]["median"] / rows[other]["median"]
            ratios.append({"of": one, "to": other, "ratio": ratio, "goal": goal, "holds": ratio <= goal})
    added = rows["restart with"]["median"] - rows["restart without"]["median"]
    most = LOAD_GOAL + LOAD_GOAL_PER_TENSOR * (options.mib // 4)
    load_seconds = rows["load"]["median"]
    limits = [
        {"what": "a save on its way to disk adds to a restart", "seconds": added, "goal": RESTART_GOAL},
        {"what": "load from memory after a restart", "seconds": load_seconds, "goal": most},
    ]
    return {
        "mib": options.mib,
        "host": {
            "processors": os.cpu_count(),
            "kernel": platform.release(),
            "load_before": load,
            "load_after": os.getloadavg(),
        },
        "launcher": str(options.launcher),
        "versions": sides["versions"],
        "missing": sides["missing"],
        "rows": rows,
        "ratios": ratios,
        "limits": [{**limit, "holds": limit["seconds"] <= limit["goal"]} for limit in limits],
        "counts": sides["counts"],
    }


def show(told):
    host = told["host"]
    versions = ", ".join("%s %s" % pair for pair in sorted(told["versions"].items()))
    print("%d MiB in tensors of 4 MiB; %s" % (told["mib"], versions))
    before, after = ("/".join("%.1f" % each for each in host[name]) for name in ("load_before", "load_after"))
    print("%d processors, Linux %s; load of 1/5/15 minutes before %s, after %s"
          % (host["processors"], host["kernel"], before, after))
    if host["load_before"][0] > 0.5:
        print("THE HOST WAS LOADED: read ratios, not seconds, and measure again on a quiet host")
    for missing in told["missing"]:
        print("missing: " + missing)
    if "/debug/" in told["launcher"]:
        print("the launcher is a debug build: its saver sums and writes slowly, so its times until on disk do not count")
    print("\n| seconds | median | min-max | saves |\n|---|---|---|---|")
    for name, text in ROWS:
        if name in told["rows"]:
            row = told["rows"][name]
            print("| %s | %.4f | %.4f-%.4f | %d |" % (text, row["median"], row["min"], row["max"], row["n"]))
    print("\n| ratio of medians | | goal | |\n|---|---|---|---|")
    for ratio in told["ratios"]:
        holds = "" if ratio["holds"] else "does not hold"
        print("| %(of)s / %(to)s | %(ratio).2f | %(goal).1f |" % ratio, holds, "|")
    print("\n| seconds | | goal | |\n|---|---|---|---|")
    for limit in told["limits"]:
        holds = "" if limit["holds"] else "does not hold"
        print("| %(what)s | %(seconds).4f | %(goal).4f |" % limit, holds, "|")
    for name, count in sorted(told["counts"].items()):
        print("%s: %d" % (name, count))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--launcher", type=pathlib.Path, default=TREE / "target/dist/dlrover-run")
    parser.add_argument("--python", default=os.environ.get("TORCH_PYTHON") or sys.executable)
    parser.add_argument("--upstream")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    load = os.getloadavg()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="saves-"))
    try:
        told = report(options, measure(options, folder), load)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show(told)
    if options.json:
        options.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
