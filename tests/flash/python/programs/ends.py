"""A script that ends right after its saves: ends.py FOLDER TENSORS [atexit|thread|prepare]

Saves a step to disk, so that threads give memory to all slots, and one to memory; with `atexit`, in a handler of it,
with `thread`, in a thread that goes on when the script has come to its end. With `prepare` it only prepares.
"""

import atexit
import sys
import threading

from dlrover_run.flash_checkpoint import DdpCheckpointer, StorageType

folder, tensors = sys.argv[1], int(sys.argv[2])
state = {"text": "x" * 100}
if tensors:
    import torch

    state.update(("x%d" % number, torch.ones(20)) for number in range(tensors))
checkpointer = DdpCheckpointer(folder, on_error="raise")


def save():
    for step, storage in enumerate([StorageType.DISK, StorageType.MEMORY]):
        checkpointer.save_checkpoint(step, state, storage_type=storage)
    print("saved", flush=True)


if "atexit" in sys.argv:
    atexit.register(save)
elif "thread" in sys.argv:
    threading.Thread(target=save).start()
elif "prepare" in sys.argv:
    checkpointer.prepare(state)
    print("saved", flush=True)
else:
    save()
