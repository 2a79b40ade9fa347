"""A worker of the bench `stacks`, of the standard library only. Its first argument is one of the functions at the end.

It writes a record for each of its stamps to the pipe DLROVER_BENCH_STAMPS, as stamps.rs reads it.
"""
import hashlib
import mmap
import os
import queue
import signal
import socket
import struct
import sys
import threading
import time

import dlrover_run

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def stamp(is_start):
    record = struct.pack("<IiQ", is_start, os.getpid(), time.monotonic_ns())
    pipe = os.open(os.environ["DLROVER_BENCH_STAMPS"], os.O_WRONLY)
    os.write(pipe, record)
    os.close(pipe)


class Gate:
    """Opens when the bench closes its end of the pipe."""

    def __init__(self, path):
        self.pipe = os.open(path, os.O_RDONLY)

    def wait(self):
        while os.read(self.pipe, 1):
            pass


# --- A training step in which the last rank waits for its loader, and all others for their peers. ---

def load_batches(requests):
    requests.get()


def next_batch(batches, told):
    stamp(told)
    return batches.get()


def all_reduce(peer, told):
    stamp(told)
    return peer.recv(1)


def backward(peer, told):
    return all_reduce(peer, told)


def train_step(peer, batches, told):
    if RANK == WORLD_SIZE - 1:
        next_batch(batches, told)
    backward(peer, told)


def train(told):
    ours, theirs = socket.socketpair()
    requests, batches = queue.Queue(), queue.Queue()
    threading.Thread(target=load_batches, args=(requests,), name="loader", daemon=True).start()
    train_step(ours, batches, told)


# --- A training that computes, in steps of one length. ---

BATCH = bytes(1 << 16)


def compute():
    """In native code, as a training does: a loop of Python takes up to 10 % more or less from one start to the next, by
    the places of its objects in memory."""
    digest = hashlib.sha256()
    for _ in range(200):
        digest.update(BATCH)


# --- What a worker does. ---

def wait():
    train(True)


def hang(gate):
    """Declares one step when all ranks are there, and hangs."""
    gate = Gate(gate)
    stamp(True)
    gate.wait()
    dlrover_run.progress(1)
    train(False)


def spin(rank, path):
    """One rank notes each time for which it does not run, as pairs of its end and its length in ns; the others wait."""
    if RANK != int(rank):
        train(True)
    with open(path, "r+b") as file:
        gaps = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
    clock, place = time.monotonic_ns, 0
    stamp(True)
    before = clock()
    while True:
        now = clock()
        if now - before > 20000:
            gaps[place] = now
            gaps[place + 1] = now - before
            place += 2
            before = clock()
        else:
            before = now


def steps(gate, folder, count, declares, first_cpu):
    """Makes so many steps on one CPU, and notes how many, their wall and CPU time, and what a declaration takes, in ns."""
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [cpus[(int(first_cpu) + RANK) % len(cpus)]])
    gate, count, declares = Gate(gate), int(count), declares == "declares"
    for _ in range(10):
        compute()
    stamp(True)
    gate.wait()
    wall, cpu = time.monotonic_ns(), time.process_time_ns()
    for step in range(count):
        compute()
        if declares:
            dlrover_run.progress(step)
    wall, cpu = time.monotonic_ns() - wall, time.process_time_ns() - cpu
    call = 0
    if declares:
        call = time.process_time_ns()
        for step in range(2000):
            dlrover_run.progress(step)
        call = (time.process_time_ns() - call) // 2000
    path = os.path.join(folder, str(RANK))
    with open(path + ".new", "w") as file:
        file.write("%d %d %d %d\n" % (count, wall, cpu, call))
    os.rename(path + ".new", path)
    stamp(False)
    signal.pause()


def pace(seconds):
    """Declares a step from time to time."""
    stamp(True)
    step = 0
    while True:
        time.sleep(float(seconds))
        step += 1
        dlrover_run.progress(step)


globals()[sys.argv[1]](*sys.argv[2:])
