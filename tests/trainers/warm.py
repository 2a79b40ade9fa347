"""Says what it is, for the tests of warm workers. The standard library only.

Into PROBE_OUT, `worker.RANK.ATTEMPT`: facts, as JSON. The last rank fails with code 3 until attempt --restarts.
"""
import argparse
import ctypes
import faulthandler
import json
import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback

parser = argparse.ArgumentParser()
parser.add_argument("--restarts", type=int, default=0)
parser.add_argument("--touch", help="a file that is written in attempt 0")
parser.add_argument("--replace", help="a file that another one, of this name with `.new`, replaces in attempt 0, on rank 0")
parser.add_argument("--children", action="store_true", help="starts processes by multiprocessing")
parser.add_argument("rest", nargs="*")
args = parser.parse_args()

RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
OUT = os.environ["PROBE_OUT"]


class Kept:
    """Of __main__, which a child process has to find."""

    def __init__(self, number):
        self.number = number


def double(kept):
    return Kept(kept.number * 2)


def trace():
    try:
        raise ValueError("here")
    except ValueError:
        return traceback.format_exc()


def of_children():
    numbers = {}
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            numbers[method] = pool.apply(double, (Kept(21),)).number
    return numbers


def number_of_fds(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def parent_of(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])


def has_variable(pid, start):
    return any(entry.startswith(start) for entry in open(f"/proc/{pid}/environ", "rb").read().split(b"\0"))


def template():
    """The descriptors and pages of the template: the only process with its variable whose parent, a guard, has it not."""
    mine = f"LAUNCH_UNDER_TEST={os.environ['LAUNCH_UNDER_TEST']}".encode()
    variable = b"DLROVER_WARM_TEMPLATE="
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            parent = parent_of(pid)
            is_one = has_variable(pid, mine) and has_variable(pid, variable) and not has_variable(parent, variable)
            if is_one and parent != os.getppid():
                return number_of_fds(pid), int(open(f"/proc/{pid}/statm").read().split()[1])
        except OSError:
            pass
    return None, None


def facts():
    template_fds, template_pages = template()
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    status = open("/proc/self/status").read()
    mask = lambda name: next(line.split()[1] for line in status.splitlines() if line.startswith(name + ":"))
    initial = open("/proc/self/environ", "rb").read().split(b"\0")
    environ = {name: value for name, value in os.environ.items()}
    return {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "leads": os.getpid() == os.getsid(0) == os.getpgid(0),
        "name": __name__,
        "file": __file__,
        "argv": sys.argv,
        "orig_argv": getattr(sys, "orig_argv", None),
        "path0": sys.path[0],
        "flags": list(sys.flags),
        "environ": environ,
        "initial": dict(entry.decode().split("=", 1) for entry in initial if entry),
        "command": open("/proc/self/cmdline").read().split("\0"),
        "getenv": (libc.getenv(b"RANK") or b"").decode(),
        "umask": os.umask(0o22),
        "cpus": sorted(os.sched_getaffinity(0)),
        "launcher_id": os.environ.get("DLROVER_LAUNCHER_ID"),
        "faulthandler": faulthandler.is_enabled(),
        "cwd": os.getcwd(),
        "fds": sorted(os.listdir("/proc/self/fd"), key=int)[:-1],
        "threads": threading.active_count(),
        "scheduler": os.sched_getscheduler(0),
        "ignored": mask("SigIgn"),
        "blocked": mask("SigBlk"),
        "handlers": [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)],
        "random": random.random(),
        "hash": hash("a word"),
        "stdout": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering, sys.stdout.write_through],
        "trace": trace(),
        "pickled": pickle.loads(pickle.dumps(Kept(7))).number,
        "children": of_children() if args.children else None,
        "template_fds": template_fds,
        "template_pages": template_pages,
        "guard_fds": number_of_fds(os.getppid()),
        "launcher_fds": number_of_fds(parent_of(os.getppid())),
        "has_modules": [name for name in ("decimal", "odd", "sitecustomize") if name in sys.modules],
        "meta_path": [str(type(finder)) for finder in sys.meta_path],
    }


def main():
    if args.replace and ATTEMPT == 0 and RANK == 0:
        os.rename(args.replace + ".new", args.replace)
    path = os.path.join(OUT, f"worker.{RANK}.{ATTEMPT}")
    with open(path + ".new", "w") as file:
        json.dump(facts(), file)
    os.rename(path + ".new", path)
    print(f"rank {RANK} on standard output")
    print(f"rank {RANK} on standard error", file=sys.stderr)
    if args.touch and ATTEMPT == 0:
        with open(args.touch, "a") as file:
            file.write("# changed\n")
    if RANK == int(os.environ["WORLD_SIZE"]) - 1 and ATTEMPT < args.restarts:
        # The others have said theirs by then.
        others = [os.path.join(OUT, f"worker.{rank}.{ATTEMPT}") for rank in range(RANK)]
        end = time.monotonic() + 60
        while not all(map(os.path.exists, others)) and time.monotonic() < end:
            time.sleep(0.002)
        sys.exit(3)


if __name__ == "__main__":
    main()
