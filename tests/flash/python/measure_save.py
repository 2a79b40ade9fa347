"""How long a save blocks training: measure_save.py [MIB]

Prints seconds for a state in tensors of 4 MiB, and for 4000 tiny tensors. The limit is what `memcpy` needs for the same
bytes into the same kind of memory, tensor by tensor; both are measured in turns, since a host is never quite idle. With
DLROVER_CKPT_SOCK the saver there is used.
"""

import ctypes
import os
import statistics
import sys
import tempfile
import time

import support
import torch
from dlrover_run.flash_checkpoint import DdpCheckpointer, StorageType, copying
from dlrover_run.flash_checkpoint.mapping import Mapping
from reference_saver import ReferenceSaver

TURNS = 15


def of(seconds):
    return "min %.4f  median %.4f  max %.4f" % (min(seconds), statistics.median(seconds), max(seconds))


def timed(call):
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def large(mib, folder, saver):
    count = mib // 4
    tensors = [torch.randn(1 << 20) for _ in range(count)]
    state = {"model": dict(("layer.%d.weight" % i, tensor) for i, tensor in enumerate(tensors)), "step": 1}
    descriptor = os.memfd_create("limit")
    os.ftruncate(descriptor, count * (4 << 20))
    target = Mapping(descriptor, count * (4 << 20))
    target.populate(0, target.size)

    def memcpy():
        for index, tensor in enumerate(tensors):
            ctypes.memmove(target.address + index * (4 << 20), tensor.data_ptr(), 4 << 20)

    memcpy()
    checkpointer = DdpCheckpointer(os.path.join(folder, "unprepared"))
    results = [checkpointer.save_checkpoint(step, state, storage_type=StorageType.MEMORY) for step in range(3)]
    print("first saves, unprepared:", ["%.3f" % result.seconds for result in results])
    del checkpointer
    if saver is not None:
        saver.forget()
    checkpointer = DdpCheckpointer(os.path.join(folder, "prepared"))
    began = time.perf_counter()
    checkpointer.prepare(state)
    called = time.perf_counter() - began
    checkpointer._join_preparation()
    print("prepare: call %.3f, done after %.3f" % (called, time.perf_counter() - began))
    limits, saves = [], []
    for step in range(TURNS):
        limits.append(timed(memcpy))
        result = checkpointer.save_checkpoint(step, state, storage_type=StorageType.MEMORY)
        assert result, result
        saves.append(result.seconds)
    print("%d MiB in %d tensors, %d threads" % (mib, count, copying._threads(mib << 20)))
    print("  first save     %.4f" % saves[0])
    print("  save           ", of(saves[1:]))
    print("  memcpy         ", of(limits[1:]))
    print(
        "  ratio           min %.2f  median %.2f"
        % (min(saves[1:]) / min(limits[1:]), statistics.median(saves[1:]) / statistics.median(limits[1:]))
    )
    loads = [timed(checkpointer.load_checkpoint) for _ in range(5)]
    print("  load           ", of(loads))
    del checkpointer
    if saver is not None:
        saver.forget()


def tiny(folder):
    state = {
        "model": dict(("layer.%d.weight" % i, torch.randn(10)) for i in range(1334)),
        "optimizer": {
            "state": {i: {"step": torch.tensor(1.0), "exp_avg": torch.randn(10)} for i in range(1333)},
            "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "params": list(range(1334))}],
        },
        "step": 1,
    }
    checkpointer = DdpCheckpointer(os.path.join(folder, "tiny"))
    saves = [checkpointer.save_checkpoint(step, state, storage_type=StorageType.MEMORY).seconds for step in range(40)]
    print("4000 tiny tensors")
    print("  first save     %.4f" % saves[0])
    print("  save           ", of(saves[4:]))
    print("  load           ", of([timed(checkpointer.load_checkpoint) for _ in range(10)]))


def main():
    torch.set_num_threads(1)
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    saver = None
    if "DLROVER_CKPT_SOCK" not in os.environ:
        saver = ReferenceSaver().__enter__()
        os.environ["DLROVER_CKPT_SOCK"] = saver.address
    with tempfile.TemporaryDirectory() as folder:
        print("load of the host: %s" % (os.getloadavg(),))
        for threads in (None, 1):
            if threads:
                copying._MOST_THREADS = threads
            large(mib, os.path.join(folder, str(threads)), saver)
        tiny(folder)


assert support
main()
