"""Checkpoints of a state that is the same on all ranks, as with DistributedDataParallel, or of one process.

checkpointer = DdpCheckpointer("/checkpoints/run")
state = checkpointer.load_checkpoint()
...
checkpointer.save_checkpoint(step, state, storage_type=StorageType.MEMORY)
"""

from . import identity
from .checkpointer import Checkpointer
from .identity import Place
from .result import StorageType
from .strategies import keep_of

__all__ = ["DdpCheckpointer", "StorageType"]


class DdpCheckpointer(Checkpointer):
    """Local rank 0 of each node saves into the memory of the node, and of node 0 also to disk.

    `local_shard_num` and `global_shard_num` are for a state in several shards, of which each node has some: the first
    `local_shard_num` local ranks save one each.
    """

    def __init__(
        self,
        checkpoint_dir,
        local_shard_num=1,
        global_shard_num=1,
        comm_backend="",
        deletion_strategy=None,
        save_timeout=600,
        replica_count=0,
        on_error="warn",
    ):
        place = Place.find()
        keep = keep_of(deletion_strategy)
        super().__init__(
            identity.of_replicated(checkpoint_dir, place, local_shard_num, global_shard_num, keep),
            place,
            save_timeout,
            replica_count,
            comm_backend,
            on_error,
        )

    def save_checkpoint(self, step, state_dict, path="", storage_type=StorageType.DISK):
        """Saves `state_dict`. Returns a SaveResult, which is true when it did what was asked for.

        With StorageType.DISK it goes to disk in the background: to the file `path`, or `<dir>/<step>/rank_<rank>.pt`.
        With StorageType.MEMORY only when the job fails or ends, then to the same place.
        """
        return self._save(step, state_dict, path, storage_type)

    def load_checkpoint(self, resume_path=""):
        """The newest state: from memory, else from disk, else {}. With `resume_path`, that file.

        `last_load` then says where it came from. Raises NothingLoads when there are checkpoints and none loads.
        Tensors are on the CPU. After init_process_group() all ranks call it, and all load the same step.
        """
        return self._load(resume_path)
