#!/usr/bin/env python3
"""What the prelude of --progress=auto costs: when Python starts, and at each step of an optimizer.

    benches/progress_cost.py [--runs 200] [PYTHON ...]

Each PYTHON is started with and without the prelude, in turn. Where it has torch, steps of an optimizer of one number
are timed with and without the hook, in turn, which is the least that a step can cost.
"""
import argparse
import io
import os
import pathlib
import statistics
import sys
import tempfile
import zipfile

TREE = pathlib.Path(__file__).resolve().parent.parent
SOURCES = TREE / "agent/src/progress"

STEPS = """
import sys, timeit
try:
    import torch
except ImportError:
    sys.exit()
hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
(number, hook), = hooks.items()
parameter = torch.zeros(1, requires_grad=True)
parameter.grad = torch.zeros(1)
step = torch.optim.SGD([parameter], lr=0.1).step
step()

def best(call, count):
    return min(timeit.repeat(call, number=count, repeat=5)) / count * 1e9

with_hook, without = [], []
for _ in range(20):
    with_hook.append(best(step, 2000))
    del hooks[number]
    without.append(best(step, 2000))
    hooks[number] = hook
alone = best(lambda: hook(None, (), {}), 200000) - best(lambda: None, 200000)
print("  a step of SGD: %.0f ns without, %.0f ns with; the hook alone: %.0f ns"
      % (min(without), min(with_hook), alone))
"""


def text(name):
    lines = (SOURCES / name).read_text().splitlines()
    return "".join(line + "\n" for line in lines if line and not line.lstrip().startswith("#"))


def module():
    """As prelude.rs makes it."""
    return "COUNTING = r'''%s'''\nexec(compile(r'''%s''', '<dlrover-run>', 'exec'))\n" % (
        text("counting.py"), text("start.py"))


def in_memory(content):
    file = os.memfd_create("prelude")
    os.write(file, content)
    return "/proc/%d/fd/%d" % (os.getpid(), file)


def zipped(source):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("sitecustomize.py", source)
    return in_memory(packed.getvalue())


def start(python, entry, *arguments):
    """CPU time in milliseconds."""
    names = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if entry:
        names["PYTHONPATH"] = entry
        names["DLROVER_PROGRESS_COUNTER"] = in_memory_counter
    process = os.posix_spawnp(python, [python, *arguments], names)
    _, status, used = os.wait4(process, 0)
    if status:
        sys.exit("%s failed" % python)
    return (used.ru_utime + used.ru_stime) * 1e3


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--runs", type=int, default=200)
parser.add_argument("python", nargs="*", default=["python3"])
arguments = parser.parse_args()
in_memory_counter = in_memory(bytes(8))
with tempfile.TemporaryDirectory() as folder:
    on_disk = "COUNTING = r'''%s'''\n%s" % (text("counting.py"), text("start.py"))
    (pathlib.Path(folder) / "sitecustomize.py").write_text(on_disk)
    ways = {
        "without": None,
        "zip in memory": zipped(module()),
        "empty module in a zip": zipped(""),
        "folder, compiled": folder,
    }
    for python in arguments.python:
        print(python, flush=True)
        times = {way: [] for way in ways}
        start(python, folder, "-c", "pass")
        for _ in range(arguments.runs):
            for way, entry in ways.items():
                times[way].append(start(python, entry, "-c", "pass"))
        base = statistics.median(times.pop("without"))
        more = ", ".join("%s +%.2f" % (way, statistics.median(taken) - base) for way, taken in times.items())
        print("  CPU ms of `-c pass`, medians of %d: %.1f; %s" % (arguments.runs, base, more), flush=True)
        start(python, ways["zip in memory"], "-c", STEPS)
