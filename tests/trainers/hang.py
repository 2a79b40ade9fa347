#!/usr/bin/env python3
"""A training that hangs, or does not, as its arguments say. The standard library only.

The ranks sum numbers over sockets (hang_exchange.py) and declare each step. At step --at of round 0 the rank --who
does what --kind says; the names of the functions below are what a verdict is expected to say. Files in PROBE_OUT:
`told.RANK`, whose time is that of the last step, `ran.ROUND.RANK` with the count of restarts, and `run-id`.

    dlrover-run --standalone --nproc-per-node=3 --hang-timeout=3 tests/trainers/hang.py --kind=loop --who=1
"""
import argparse
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time

from hang_exchange import RANK, ROUND, WORLD, Exchange
from tcp_store import Store, StoreServer

OUT = os.environ.get("PROBE_OUT", ".")
KINDS = {}


def note(name, text):
    """Writes the file in one step, so that it is never read incomplete."""
    path = os.path.join(OUT, name)
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)


def kind(function):
    KINDS[function.__name__.replace("_", "-")] = function
    return function


# --- What the rank --who does at step --at. --------------------------------------------------------

@kind
def loop(job):
    search_for_sample()


def search_for_sample():
    number = 1
    while True:
        number = number * 16807 % 2147483647


@kind
def lock(job):
    take_cache_lock(threading.Lock())


def take_cache_lock(cache):
    cache.acquire()
    cache.acquire()


@kind
def long_sleep(job):
    back_off()


def back_off():
    time.sleep(1e6)


@kind
def stop(job):
    os.kill(os.getpid(), signal.SIGSTOP)


@kind
def fifo(job):
    """Until a process opens it for writing and closes it."""
    path = os.path.join(OUT, f"fifo.{RANK}")
    os.mkfifo(path + ".new")
    os.rename(path + ".new", path)
    read_shard_list(path)


def read_shard_list(path):
    with open(path, "rb") as file:
        file.read()


@kind
def held_fifo(job):
    """A writer has it open and writes nothing."""
    path = os.path.join(OUT, f"held.{RANK}")
    os.mkfifo(path)
    held = os.open(path, os.O_RDWR)
    read_command(os.open(path, os.O_RDONLY))
    os.close(held)


def read_command(descriptor):
    os.read(descriptor, 1)


@kind
def helper_dies(job):
    """A process that makes the exchange for this rank is killed. This rank holds the other end of its own pipe, so that
    neither it nor the launcher notices."""
    reader, writer = os.pipe()
    helper = subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], stdin=writer, stdout=writer)
    helper.wait()
    await_helper(reader)


def await_helper(reader):
    os.read(reader, 1)


@kind
def queue_of_thread(job):
    """A loader's thread is stuck, and the step waits for its queue."""
    batches = queue.Queue()
    threading.Thread(target=produce_batches, args=(batches,), daemon=True).start()
    next_batch(batches)


def produce_batches(batches):
    threading.Event().wait()
    batches.put(None)


def next_batch(batches):
    return batches.get()


@kind
def loader_process(job):
    """A loader's process is stuck, and the step waits for its pipe."""
    program = "import threading; threading.Event().wait()"
    loader = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    read_from_loader(loader)


def read_from_loader(loader):
    return loader.stdout.read(8)


@kind
def child(job):
    """It waits for a command that never ends."""
    run_command([sys.executable, "-c", "import threading; threading.Event().wait()"])


def run_command(command):
    subprocess.run(command, check=True)


@kind
def deadlock(job):
    """Two ranks wait for each other, each in an exchange of its own."""
    if RANK == job.who:
        exchange_weights(job)
    else:
        exchange_statistics(job)


def exchange_weights(job):
    job.exchange.receive_from(job.other, "weights")
    job.exchange.send_to(job.other, "statistics")


def exchange_statistics(job):
    job.exchange.receive_from(job.who, "statistics")
    job.exchange.send_to(job.who, "weights")


@kind
def skip(job):
    """It leaves a sum out, and waits for its peers at the next barrier."""
    job.tell()
    job.exchange.barrier()


@kind
def early_exit(job):
    """It ends well while the others wait at a barrier."""
    os._exit(0)


@kind
def dead_peer(job):
    """It ends well in a step, while its peers sum. A process of its own keeps its sockets open, so that none of them
    notices."""
    if os.fork() == 0:
        threading.Event().wait()
    os._exit(0)


@kind
def lost_message(job):
    """A part of every message is lost. No rank is at fault."""
    job.exchange.loses = True


# --- Jobs that do not hang. ------------------------------------------------------------------------

@kind
def healthy(job):
    pass


@kind
def long_pause(job):
    """Shorter than the timeout."""
    time.sleep(job.pause)


@kind
def checkpoint(job):
    """Longer than the timeout, and declared."""
    job.declare(f"{job.step} checkpoint")
    save_weights(job.pause)
    job.declare(f"{job.step}")


@kind
def busy_too_long(job):
    """Declared, and longer than the grace, too."""
    job.declare(f"{job.step} checkpoint")
    save_weights(1e6)


def save_weights(seconds):
    time.sleep(seconds)


# --- The training. ---------------------------------------------------------------------------------

class Job:
    def __init__(self, args):
        self.args, self.who, self.other, self.pause = args, args.who, args.other, args.pause
        self.step, self.noise = 0, random.Random(args.seed * 1000 + RANK)
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and RANK == 0:
            StoreServer(int(os.environ["MASTER_PORT"]))
        store = Store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        store.sock.settimeout(600)
        self.exchange = Exchange(store, args.by, args.imported, args.poll)

    def declare(self, line):
        with open(os.path.join(OUT, f"told.{RANK}"), "w"):
            pass
        path = os.environ.get("DLROVER_PROGRESS_FILE")
        if path and self.args.tells != "none" and (self.args.tells == "all" or RANK == 0):
            with open(path, "w") as file:
                file.write(line + "\n")

    def tell(self):
        self.declare(str(self.step))

    def sum(self, number):
        return getattr(self.exchange, self.args.name)(number)

    def is_at(self):
        """Whether this rank does now what its kind says."""
        ranks = [self.who, self.other] if self.args.kind == "deadlock" else [self.who]
        is_mine = RANK in ranks or self.args.kind == "lost-message"
        return self.step == self.args.at and is_mine and ROUND == "0"

    def compute(self):
        time.sleep(self.args.pace + self.noise.random() * self.args.noise)
        if RANK == self.who:
            time.sleep(self.args.lag)

    def train_step(self):
        self.compute()
        if self.is_at():
            KINDS[self.args.kind](self)
        if self.args.kind == "early-exit":
            self.exchange.barrier()
        total = self.sum(self.step)
        assert total == self.step * WORLD, (total, self.step)
        self.tell()

    def train(self):
        if self.args.first:
            time.sleep(self.args.first)
        for self.step in range(1, self.args.steps + 1):
            self.train_step()
        self.exchange.barrier()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=sorted(KINDS), default="healthy")
    parser.add_argument("--who", type=int, default=0, metavar="RANK")
    parser.add_argument("--other", type=int, default=1, metavar="RANK", help="of a deadlock")
    parser.add_argument("--at", type=int, default=5, metavar="STEP")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pace", type=float, default=0.02, help="seconds for each step")
    parser.add_argument("--noise", type=float, default=0.0, help="seconds of a step that are random")
    parser.add_argument("--lag", type=float, default=0.0, help="more seconds for each step of --who")
    parser.add_argument("--first", type=float, default=0.0, help="seconds before the first step")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of a pause")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--by", choices=["ring", "star"], default="star")
    parser.add_argument("--name", choices=["all_reduce", "exchange_gradients"], default="all_reduce")
    parser.add_argument("--imported", action="store_true", help="messages are read by a function of another file")
    parser.add_argument("--poll", action="store_true", help="sockets have a timeout")
    parser.add_argument("--tells", choices=["all", "first", "none"], default="all", help="ranks that declare steps")
    parser.add_argument("--in-thread", action="store_true", help="the training runs in a thread of its own")
    return parser.parse_args()


def main():
    args = arguments()
    note(f"ran.{ROUND}.{RANK}", os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if RANK == 0:
        note("run-id", os.environ.get("TORCHELASTIC_RUN_ID", "none"))
    job = Job(args)
    if args.in_thread:
        thread = threading.Thread(target=job.train, name="trainer")
        thread.start()
        thread.join()
    else:
        job.train()


if __name__ == "__main__":
    main()
