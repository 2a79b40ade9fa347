#!/usr/bin/env python3
"""A worker that leaves processes behind, for the suites that look for them afterwards.

    breeder.py BREEDS [leader-dies] [fail] [restart] [deaf]

BREEDS is a comma-separated list of what each worker starts:

    plain      a child that waits
    stubborn   one that ignores every signal a program can ignore politely
    setsid     one in a session of its own
    daemon     forked twice, in a session of its own, without the descriptors it was born with
    bare       a daemon with an empty environment, so without the marker of its run
    hopper     forks itself away every few milliseconds: its process id is never the one you just saw

When all are there, the worker says so in `worker.<rank>.<attempt>` (process id, start, parent, launcher's mark)
and waits for the file `go`, then ends well. Options change that:

    leader-dies   rank 0 ends well at once, without its children
    fail          the last rank fails once all ranks are ready and the file `fail` is there
    restart       that too, without being told, in the first attempt only; a later one first looks for what older ones left and
                  writes it to `old.<rank>.<attempt>`
    deaf          ignores SIGTERM, but says in `termed.<rank>` that it came

Every descendant writes itself into `pids` first (process id, start, breed, rank, attempt); hoppers, which no
list of processes can catch, hold a lock on `hoppers.<attempt>` instead, which each leaves to the next. Nothing
here lives longer than LIFETIME, so not even a bug leaves something for good.
"""
import fcntl
import os
import signal
import sys
import time

OUT = os.environ["PROBE_OUT"]
RANK = os.environ["RANK"]
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
ATTEMPT = os.environ["TORCHELASTIC_RESTART_COUNT"]
LIFETIME = 300
IGNORABLE = ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "ALRM", "PIPE", "TSTP", "TTIN", "TTOU")


def path(name):
    return os.path.join(OUT, name)


def write(name, text):
    """Writes the file in one step, so it is never read incomplete."""
    with open(path(name + ".new"), "w") as file:
        file.write(text)
    os.rename(path(name + ".new"), path(name))


def stat(pid):
    """State, parent and start of a process; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1]), fields[19]


def await_that(there):
    give_up = time.monotonic() + LIFETIME
    while not there():
        if time.monotonic() > give_up:
            os._exit(70)
        time.sleep(0.005)


def rename(name):
    """The name in /proc/<pid>/stat: tells descendants from workers."""
    with open("/proc/self/comm", "w") as file:
        file.write(name)


def enlist(breed):
    line = f"{os.getpid()} {stat('self')[2]} {breed} {RANK} {ATTEMPT}\n"
    pids = os.open(path("pids"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(pids, line.encode())
    os.close(pids)


def hop(ready):
    """A new process every few milliseconds. `calm` or the loss of our directory ends it."""
    give_up = time.monotonic() + LIFETIME
    # Never closed: the lock is gone with the last process that has this descriptor.
    lock = os.open(path(f"hoppers.{ATTEMPT}"), os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(lock, fcntl.LOCK_SH)
    while os.path.exists(OUT) and not os.path.exists(path("calm")) and time.monotonic() < give_up:
        if ready is not None:
            os.close(ready)
            ready = None
        time.sleep(0.003)
        if os.fork() != 0:
            os._exit(0)
    os._exit(0)


def live(breed, ready):
    rename(f"breed-{breed}")
    for name in IGNORABLE:
        signal.signal(getattr(signal, f"SIG{name}"), signal.SIG_IGN if breed == "stubborn" else signal.SIG_DFL)
    if breed in ("setsid", "daemon", "bare"):
        os.setsid()
    if breed in ("daemon", "bare") and os.fork() != 0:
        os._exit(0)
    if breed == "hopper":
        hop(ready)
    enlist(breed)
    if breed == "bare":
        # The pipe is closed by exec.
        os.execve("/bin/sleep", ["sleep", str(LIFETIME)], {})
    if breed == "daemon":
        os.closerange(0, 1024)
    else:
        os.close(ready)
    time.sleep(LIFETIME)
    os._exit(0)


def leave(breed):
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            os.close(reader)
            live(breed, writer)
        finally:
            os._exit(71)
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)


def is_held(name):
    # Another rank of this generation may look at the same moment; a hopper holds its lock to its end.
    for _ in range(20):
        try:
            with open(name, "r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        except FileNotFoundError:
            return False
        except BlockingIOError:
            time.sleep(0.005)
    return True


def left_of_older_attempts():
    found = []
    try:
        with open(path("pids")) as file:
            lines = [line.split() for line in file]
    except FileNotFoundError:
        lines = []
    for pid, start, breed, rank, attempt in lines:
        now = stat(pid)
        if int(attempt) < int(ATTEMPT) and now and now[0] not in "ZX" and now[2] == start:
            found.append(f"{pid} {breed} of rank {rank}")
    for attempt in range(int(ATTEMPT)):
        if is_held(path(f"hoppers.{attempt}")):
            found.append(f"0 hopper of attempt {attempt}")
    known = {line.split()[0] for line in found}
    mark = f"LAUNCH_UNDER_TEST={os.environ['LAUNCH_UNDER_TEST']}".encode()
    old = [f"TORCHELASTIC_RESTART_COUNT={attempt}".encode() for attempt in range(int(ATTEMPT))]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environ = file.read().split(b"\0")
        except OSError:
            continue
        # What the kernel shows of the template of warm workers, and of each of them, is the template's.
        is_warm = any(entry.startswith(b"DLROVER_WARM_TEMPLATE=") for entry in environ)
        if pid not in known and mark in environ and not is_warm and any(one in environ for one in old):
            found.append(f"{pid} by its environment")
    return found


def main():
    breeds, options = sys.argv[1], set(sys.argv[2:])
    if "restart" in options and ATTEMPT != "0":
        write(f"old.{RANK}.{ATTEMPT}", "\n".join(left_of_older_attempts()))
    if "deaf" in options:
        signal.signal(signal.SIGTERM, lambda *_: write(f"termed.{RANK}", ""))
    for breed in filter(None, breeds.split(",")):
        leave(breed)
    _, parent, start = stat("self")
    mark = os.environ.get("DLROVER_LAUNCHER_ID", "-")
    write(f"worker.{RANK}.{ATTEMPT}", f"{os.getpid()} {start} {parent} {mark}")
    if "leader-dies" in options and RANK == "0":
        os._exit(0)
    fails = "fail" in options or ("restart" in options and ATTEMPT == "0")
    if fails and RANK == str(WORLD_SIZE - 1):
        ranks = range(WORLD_SIZE)
        await_that(lambda: all(os.path.exists(path(f"worker.{rank}.{ATTEMPT}")) for rank in ranks))
        if "leader-dies" in options:
            with open(path(f"worker.0.{ATTEMPT}")) as file:
                leader = file.read().split()
            await_that(lambda: (stat(leader[0]) or ("X",))[0] in "ZX")
        if "fail" in options:
            await_that(lambda: os.path.exists(path("fail")))
        os._exit(3)
    await_that(lambda: os.path.exists(path("go")))
    os._exit(0)


if __name__ == "__main__":
    main()
