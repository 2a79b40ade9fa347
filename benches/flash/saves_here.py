"""Ours, torch's own and memcpy: saves_here.py MIB TURNS FOLDER, under dlrover-run."""

import ctypes
import mmap
import os
import shutil
import sys
import threading
import warnings

import torch
import torch.distributed.checkpoint as dcp
from saves_common import TENSOR, Figures, await_tracker, state_of, timed, touch, tracked
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from dlrover_run.flash_checkpoint import DdpCheckpointer, StorageType, copying

warnings.simplefilter("ignore")
mib, turns, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
figures = Figures()
tensors, state = state_of(mib)
ours, theirs = os.path.join(folder, "ours"), os.path.join(folder, "dcp")
target = mmap.mmap(-1, len(tensors) * TENSOR)
address = ctypes.addressof(ctypes.c_char.from_buffer(target))
step = 0


def memcpy(first=0, stride=1):
    for index in range(first, len(tensors), stride):
        ctypes.memmove(address + index * TENSOR, tensors[index].data_ptr(), TENSOR)


def memcpy_by_two():
    # A foreign call releases the lock of the interpreter.
    other = threading.Thread(target=memcpy, args=(1, 2))
    other.start()
    memcpy(0, 2)
    other.join()


def save(storage):
    global step
    step += 1
    seconds, result = timed(lambda: checkpointer.save_checkpoint(step, state, storage_type=storage))
    figures.count("ours, saves that were not taken", not result)
    return seconds


def by_torch(name, **options):
    # As its guide has it: a new directory for each step.
    path = os.path.join(theirs, "%s-%d" % (name, step))
    touch()
    whole, seconds = timed(lambda: write_by_torch(path, options))
    figures.add(name, seconds)
    if name == "dcp":
        figures.add("dcp on disk", whole)
    shutil.rmtree(path)


def write_by_torch(path, options):
    seconds, future = timed(lambda: dcp.async_save(state, checkpoint_id=path, **options))
    getattr(future, "upload_completion", future).result()
    return seconds


memcpy()
memcpy()
checkpointer = DdpCheckpointer(ours)
checkpointer.prepare(state)
checkpointer._join_preparation()
touch()
figures.add("ours first", save(StorageType.MEMORY))
# Default options need an accelerator. Kept, and in private memory: the fastest of its ways on a processor.
stager = DefaultStager(StagingOptions(False, False, False, False))
for name, options in (("dcp", {}), ("dcp kept", {"async_stager": stager})):
    by_torch(name, **options)
    figures.seconds[name].clear()
figures.seconds["dcp on disk"].clear()
most_threads = copying._MOST_THREADS
for _ in range(turns):
    touch()
    figures.add("memcpy", timed(memcpy)[0])
    touch()
    figures.add("memcpy two threads", timed(memcpy_by_two)[0])
    touch()
    figures.add("ours", save(StorageType.MEMORY))
    copying._MOST_THREADS = 1
    touch()
    figures.add("ours one thread", save(StorageType.MEMORY))
    copying._MOST_THREADS = most_threads
    by_torch("dcp")
    by_torch("dcp kept", async_stager=stager)
for _ in range(max(2, turns // 3)):
    touch()
    figures.add("ours disk call", save(StorageType.DISK))
    wanted = step
    for _ in range(3):
        seconds = save(StorageType.MEMORY)
        # Only while the saver was still writing.
        if tracked(ours) < wanted:
            figures.add("ours during persist", seconds)
    figures.count("ours, DISK saves that were not on disk after 60 s", not await_tracker(ours, wanted))
for _ in range(max(2, turns // 3)):
    began_at = step + 1
    touch()
    figures.add("ours on disk", timed(lambda: (save(StorageType.DISK), await_tracker(ours, began_at)))[0])
figures.write(folder, **{"torch": torch.__version__})
checkpointer.close()
