"""Frameworks that save by writing files: the files of a rank as one state, and back into a directory.

For adaptors. The saver writes one file for each rank; `unpack` makes those of the framework of it before a load.
"""

import contextlib
import os

from . import documents, identity, synchronous
from .checkpointer import Checkpointer
from .errors import FlashCheckpointError, NoSaver
from .identity import Place
from .result import StorageType
from .strategies import keep_of


class RankCheckpointer(Checkpointer):
    """Every rank saves a state of its own, as a `.pt` file. All ranks save and load at the same steps."""

    def __init__(self, checkpoint_dir, comm_backend="", deletion_strategy=None, save_timeout=600, replica_count=0):
        place = Place.find()
        who = identity.of_sharded(checkpoint_dir, place, "pt", keep_of(deletion_strategy))
        super().__init__(who, place, save_timeout, replica_count, comm_backend)

    def save_checkpoint(self, step, state_dict, path="", storage_type=StorageType.DISK):
        """Saves the state of this rank. Returns a SaveResult."""
        return self._save(step, state_dict, path, storage_type)

    def load_checkpoint(self, resume_path=""):
        """The newest state of this rank, of the step that all ranks load; {} without any."""
        return self._load(resume_path)

    def _may_write_alone(self, error):
        # Only what is so for all ranks: the others must take part.
        return isinstance(error, NoSaver) and error.key == "no address"

    def _write_alone(self, step, state, path):
        try:
            mine = synchronous.write_file(self._identity, step, state, path), None
        except Exception as error:
            mine = None, "rank %d: %s: %s" % (self._place.rank, type(error).__name__, error)

        def decide(shards):
            fault = next((fault for _, fault in shards if fault), None)
            if fault:
                raise FlashCheckpointError(fault)
            synchronous.commit(self._identity, step, [shard for shard, _ in shards])
            return [None] * len(shards)

        self._exchange.together("write %d" % step, mine, decide)


@contextlib.contextmanager
def collected(directory):
    """While it runs, torch.save keeps what it is given for files below `directory`, by their path in it."""
    import torch

    kept, save = {}, torch.save
    directory = identity.absolute(directory)

    def keep(value, file, *args, **kwargs):
        if isinstance(file, (str, os.PathLike)):
            below = os.path.relpath(identity.absolute(file), directory)
            if not below.startswith(os.pardir):
                kept[below] = value
                return
        save(value, file, *args, **kwargs)

    torch.save = keep
    try:
        yield kept
    finally:
        torch.save = save


def unpack(directory, files):
    """Writes the files of a state: texts as they are, other values as torch.save does.

    In the place of what is there: that may be of another save of the same step. All files get their names when all of
    them are written, or none does.
    """
    import torch

    with contextlib.ExitStack() as written:
        for name, value in files.items():
            path = os.path.join(directory, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            file = written.enter_context(documents.replacing(path))
            if isinstance(value, str):
                file.write(value.encode())
            else:
                torch.save(value, file)


def barrier():
    """Waits for all ranks, if there are several."""
    import torch.distributed as distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
