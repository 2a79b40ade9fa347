#!/usr/bin/env python3
"""A worker for the suites: does what the PROBE environment variable says, and writes down what it saw.

PROBE holds one step a line, so argv stays free for the case at hand:

    [RANK][@ATTEMPT] ACTION [VALUE]         `1@0 exit 3`, `@1 dump`, `0 kill SEGV`, `dump`

A step with a rank or an attempt is done by that one only. Files go to PROBE_OUT, as
`<rank>.<attempt>.<what>`. Nothing here sleeps and hopes: steps wait for a file or a signal.
PROBE_ATTEMPT names the variable that counts attempts: DLROVER_ROUND where several nodes write to one place.

    dump                 everything a launcher decides about a worker, as JSON
    out TEXT, err TEXT   writes TEXT, Python escapes resolved, nothing added
    exit CODE            leaves at once
    raise TEXT           raises a RuntimeError
    kill SIGNAL          signals itself and waits for it
    ignore SIGNAL        ignores it from here on
    until SIGNAL         writes down every signal that comes, until this one
    touch NAME           makes the file NAME
    await NAME           waits for it
    work                 waits for the file `go`; fails if it finds the file `fail`, which it takes away
    hang                 waits for ever
    error TEXT           writes TEXT to TORCHELASTIC_ERROR_FILE
    child KIND           leaves a grandchild behind: plain, stubborn, setsid or double
    stdin                reads one line and writes it down
    gone DUMP            waits until the worker that wrote the file DUMP is gone
    serve                serves a TCPStore at MASTER_PORT from here on
    overfill             sets more keys than a store of ours takes, and writes down how the connection ends
    set KEY VALUE, get KEY, add KEY, has KEY     the TCPStore at MASTER_ADDR:MASTER_PORT
"""
import codecs
import json
import os
import re
import signal
import sys
import time

RANK = os.environ.get("RANK", "x")
ATTEMPT = os.environ.get(os.environ.get("PROBE_ATTEMPT", "TORCHELASTIC_RESTART_COUNT"), "x")
RECORDED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
PATIENCE = 60


def note(what, text, mode="w"):
    """Writes the file in one step, so it is never read incomplete."""
    path = os.path.join(os.environ["PROBE_OUT"], f"{RANK}.{ATTEMPT}.{what}")
    if mode == "w":
        with open(path + ".new", "w") as file:
            file.write(text)
        os.rename(path + ".new", path)
    else:
        with open(path, mode) as file:
            file.write(text)


def dump():
    fds = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            fds[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            pass  # The one that listed them.
    with open("/proc/self/cmdline", "rb") as file:
        command = [part.decode() for part in file.read().split(b"\0")[:-1]]
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file)
    umask = os.umask(0)
    os.umask(umask)
    note("dump", json.dumps({
        "env": dict(os.environ), "argv": sys.argv, "command": command, "cwd": os.getcwd(), "fds": fds,
        "pid": os.getpid(), "ppid": os.getppid(), "pgid": os.getpgid(0), "sid": os.getsid(0), "umask": umask,
        "ignored_signals": status["SigIgn"], "blocked_signals": status["SigBlk"],
    }, indent=1))


def number(name):
    return int(name) if name.isdigit() else signal.Signals[f"SIG{name}"]


def until(last):
    """The recorded signals are blocked since the start, so none is missed between two steps."""
    while True:
        got = signal.Signals(signal.sigwait(RECORDED)).name[3:]
        note("signals", got + "\n", "a")
        if got == last:
            return


def wait_for_file(name):
    give_up = time.monotonic() + PATIENCE
    path = os.path.join(os.environ["PROBE_OUT"], name)
    while not os.path.exists(path):
        if time.monotonic() > give_up:
            sys.exit(f"probe: {name} never came")
        time.sleep(0.005)


def work():
    where = os.environ["PROBE_OUT"]
    while not os.path.exists(os.path.join(where, "go")):
        try:
            os.rename(os.path.join(where, "fail"), os.path.join(where, f"{RANK}.{ATTEMPT}.failed"))
            os._exit(3)
        except FileNotFoundError:
            time.sleep(0.02)


def wait_for_death(dump_file):
    with open(os.path.join(os.environ["PROBE_OUT"], dump_file)) as file:
        pid = json.load(file)["pid"]
    while os.path.exists(f"/proc/{pid}/fd/0"):  # A zombie has no descriptors.
        time.sleep(0.005)


def touch(name):
    with open(os.path.join(os.environ["PROBE_OUT"], name), "w"):
        pass


def leave_child(kind):
    """Returns when the grandchild is what it should be; its pid is in the file `child`."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        if kind in ("setsid", "double"):
            os.setsid()
        if kind == "double" and os.fork() != 0:
            os._exit(0)
        if kind == "stubborn":
            for name in ("TERM", "INT", "HUP", "QUIT"):
                signal.signal(number(name), signal.SIG_IGN)
        note(f"child.{kind}", str(os.getpid()))
        os.close(writer)
        while True:
            signal.pause()
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)


def store():
    from tcp_store import Store

    return Store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), PATIENCE)


def perform(action, value):
    if action == "dump":
        dump()
    elif action in ("out", "err"):
        stream = sys.stdout if action == "out" else sys.stderr
        stream.buffer.write(codecs.escape_decode(value.encode())[0])
        stream.flush()
    elif action == "exit":
        os._exit(int(value))
    elif action == "raise":
        raise RuntimeError(value)
    elif action == "kill":
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.kill(os.getpid(), number(value))
        signal.pause()
    elif action == "ignore":
        signal.signal(number(value), signal.SIG_IGN)
    elif action == "until":
        until(value)
    elif action == "touch":
        touch(value)
    elif action == "await":
        wait_for_file(value)
    elif action == "work":
        work()
    elif action == "hang":
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        while True:
            signal.pause()
    elif action == "error":
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            file.write(value)
    elif action == "child":
        leave_child(value)
    elif action == "stdin":
        note("stdin", sys.stdin.readline())
    elif action == "gone":
        wait_for_death(value)
    elif action == "serve":
        from tcp_store import StoreServer

        StoreServer(int(os.environ["MASTER_PORT"]))
    elif action == "set":
        key, value = value.split(" ", 1)
        store().set(key, value.encode())
    elif action == "overfill":
        note("overfill", store().overfill())
    elif action == "get":
        note(f"get.{value}", store().get(value).decode())
    elif action == "add":
        note(f"add.{value}", str(store().add(value, 1)))
    elif action == "has":
        note(f"has.{value}", str(store().has(value)))
    else:
        sys.exit(f"probe: unknown step {action!r}")


def main():
    steps = os.environ.get("PROBE", "dump").splitlines()
    if any(" until " in f" {step}" for step in steps):
        signal.pthread_sigmask(signal.SIG_BLOCK, RECORDED)
    for step in steps:
        target, action, value = re.fullmatch(r"(?:([0-9]*(?:@[0-9]+)?) )?([a-z]+)(?: (.*))?", step).groups()
        rank, _, attempt = (target or "").partition("@")
        if rank in ("", RANK) and attempt in ("", ATTEMPT):
            perform(action, value or "")


if __name__ == "__main__":
    main()
