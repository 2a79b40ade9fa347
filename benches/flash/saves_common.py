"""What both processes of saves.py have in common."""

import ctypes
import errno
import json
import mmap
import os
import time

import torch

TENSOR = 4 << 20

# The most that one call may read.
PIECES = 1024

process_vm_readv = ctypes.CDLL(None, use_errno=True).process_vm_readv
process_vm_readv.restype = ctypes.c_ssize_t
process_vm_readv.argtypes = [
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_ulong,
]


def state_of(mib):
    """A model and two moments for each of its tensors, together this large."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tensors = [torch.randn(TENSOR // 4) for _ in range(mib * (1 << 20) // TENSOR)]
    third = len(tensors) // 3
    return tensors, {
        "model": {"layer.%d.weight" % index: tensor for index, tensor in enumerate(tensors[:third])},
        "optimizer": {"moment.%d" % index: tensor for index, tensor in enumerate(tensors[third:])},
        "step": 1,
    }


def touch():
    """Reads a byte of each page that this process has in large memory which it may write to.

    Some virtual machines take memory that rests away from their guests: here a memcpy of 512 MiB took 0.06 s, and after
    a rest of six seconds 0.5 s, with no fault in the guest. A training step keeps its tensors in use; a bench has to.
    """
    with open("/proc/self/maps") as maps:
        mapped = [line.split()[:2] for line in maps]
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for extent, rights in mapped:
            first, end = (int(each, 16) for each in extent.split("-"))
            if not rights.startswith("rw") or end - first < TENSOR:
                continue
            pagemap.seek(first // mmap.PAGESIZE * 8)
            entries = torch.frombuffer(bytearray(pagemap.read((end - first) // mmap.PAGESIZE * 8)), dtype=torch.int64)
            # The sign is the bit of a page that is there: others are not made here, as a save may have to.
            pages = (entries < 0).nonzero().flatten()
            read_byte_of_each(first + pages * mmap.PAGESIZE)


def read_byte_of_each(addresses):
    # By the kernel: memory that another thread has given back by now is no fault.
    pieces = torch.stack((addresses, torch.ones_like(addresses)), 1)
    buffer = (ctypes.c_ubyte * PIECES)()
    whole = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), PIECES)
    for first in range(0, len(pieces), PIECES):
        some = pieces[first : first + PIECES]
        if process_vm_readv(os.getpid(), whole, 1, some.data_ptr(), len(some), 0) < 0:
            error = ctypes.get_errno()
            if error != errno.EFAULT:
                raise OSError(error, os.strerror(error))


def timed(call):
    """Seconds of a call, and what it returned."""
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


class Figures:
    def __init__(self):
        self.seconds, self.counts = {}, {}

    def add(self, name, seconds):
        self.seconds.setdefault(name, []).append(seconds)

    def count(self, name, holds):
        self.counts[name] = self.counts.get(name, 0) + bool(holds)

    def write(self, folder, **versions):
        told = {"seconds": self.seconds, "counts": self.counts, "versions": versions}
        with open(os.path.join(folder, "result.json"), "w") as file:
            json.dump(told, file)


def tracked(folder):
    """The step that counts on disk."""
    try:
        with open(os.path.join(folder, "dlrover_latest.txt")) as file:
            return int(file.read() or -1)
    except FileNotFoundError:
        return -1


def await_tracker(folder, step):
    """Whether the step is on disk, after 60 s at most."""
    deadline = time.monotonic() + 60
    while tracked(folder) < step and time.monotonic() < deadline:
        time.sleep(0.002)
    return tracked(folder) >= step
