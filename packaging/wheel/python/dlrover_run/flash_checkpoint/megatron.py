"""Checkpoints of Megatron-LM in memory: functions of the same names and arguments.

    from dlrover_run.flash_checkpoint.megatron import load_checkpoint, save_checkpoint

Not run: Megatron-LM needs GPUs. Written after its interface. Each rank saves what Megatron-LM would write as one state;
`load_checkpoint` makes the files of Megatron-LM of it in `args.load`, which all ranks see, and calls its own function.
"""

import inspect
import os

from . import documents, files
from .result import StorageType

__all__ = ["StorageType", "load_checkpoint", "save_checkpoint", "wait_latest_checkpoint"]

# What Megatron-LM reads to find the newest iteration.
_TRACKER = "latest_checkpointed_iteration.txt"

_checkpointers = {}


def save_checkpoint(
    iteration,
    model,
    optimizer,
    opt_param_scheduler,
    num_floating_point_operations_so_far=0,
    storage_type=StorageType.DISK,
    storage=None,
    comm_backend="",
    save_timeout=600,
    replica_count=0,
    deletion_strategy=None,
):
    """Saves as Megatron-LM's function of this name, into memory. Returns a SaveResult. All ranks call it."""
    megatron = _megatron()
    folder = megatron.get_args().save
    checkpointer = _checkpointer(folder, comm_backend, deletion_strategy, save_timeout, replica_count)
    arguments = [iteration, model, optimizer, opt_param_scheduler]
    if "num_floating_point_operations_so_far" in inspect.signature(megatron.save_checkpoint).parameters:
        arguments.append(num_floating_point_operations_so_far)
    tracker = os.path.join(folder, _TRACKER)
    before = _content(tracker)
    with files.collected(folder) as kept:
        megatron.save_checkpoint(*arguments)
    if checkpointer._place.rank == 0:
        # It names an iteration that is not there yet.
        if before is None:
            documents.remove(tracker)
        else:
            documents.write(tracker, before)
    path = os.path.join(folder, "flash", str(iteration), "rank_%d.pt" % checkpointer._place.rank)
    return checkpointer.save_checkpoint(iteration, {"files": kept}, path, storage_type)


def load_checkpoint(
    model,
    optimizer,
    opt_param_scheduler,
    load_arg="load",
    strict=True,
    storage=None,
    comm_backend="",
    save_timeout=600,
    replica_count=0,
    deletion_strategy=None,
):
    """Loads as Megatron-LM's function of this name, and returns what it returns. All ranks call it."""
    megatron = _megatron()
    folder = getattr(megatron.get_args(), load_arg)
    if folder:
        checkpointer = _checkpointer(folder, comm_backend, deletion_strategy, save_timeout, replica_count)
        state = checkpointer.load_checkpoint()
        if state:
            files.unpack(folder, state["files"])
            if checkpointer._place.rank == 0:
                documents.write(os.path.join(folder, _TRACKER), b"%d" % checkpointer.last_load.step)
        files.barrier()
    return megatron.load_checkpoint(model, optimizer, opt_param_scheduler, load_arg=load_arg, strict=strict)


def wait_latest_checkpoint(timeout=1800):
    """Waits until the newest states that are to go to disk are there."""
    return all([checkpointer.wait_latest_checkpoint(timeout) for checkpointer in _checkpointers.values()])


def _checkpointer(folder, comm_backend, deletion_strategy, save_timeout, replica_count):
    folder = os.path.abspath(folder)
    if folder not in _checkpointers:
        _checkpointers[folder] = files.RankCheckpointer(
            folder, comm_backend, deletion_strategy, save_timeout, replica_count
        )
    return _checkpointers[folder]


class _Megatron:
    def __init__(self, get_args, save_checkpoint, load_checkpoint):
        self.get_args, self.save_checkpoint, self.load_checkpoint = get_args, save_checkpoint, load_checkpoint


def _megatron():
    try:
        from megatron.training import get_args
        from megatron.training.checkpointing import load_checkpoint as load
        from megatron.training.checkpointing import save_checkpoint as save
    except ImportError:
        # Before the core 0.6.
        from megatron import get_args
        from megatron.checkpointing import load_checkpoint as load
        from megatron.checkpointing import save_checkpoint as save
    return _Megatron(get_args, save, load)


def _content(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None
