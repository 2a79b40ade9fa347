"""Which part of a checkpoint this process saves and loads."""

import collections
import os
import sys

FORMATS = ("pt", "dcp", "safetensors")

# `hello` of the protocol has these; `restarts` and `writes_disk` are for headers and commits. `replicas` is how many other
# nodes keep a copy of what is saved into memory.
Identity = collections.namedtuple(
    "Identity",
    "run_id dir rank world local_rank shard n_shards replicated role round restarts format keep writes_disk replicas",
)


class Place(collections.namedtuple("Place", "rank world local_rank node local_world run_id round restarts")):
    """Where this process is in the job: from the environment of its launcher, else from torch.distributed."""

    @classmethod
    def find(cls):
        """Reads the environment. Raises ValueError for a rank that is not below the world."""
        rank, world = _number("RANK"), _number("WORLD_SIZE")
        if rank is None or world is None:
            rank, world = _of_process_group()
        local_rank = _number("LOCAL_RANK")
        local_world = _number("LOCAL_WORLD_SIZE") or 1
        node = _number("GROUP_RANK")
        if not 0 <= rank < world:
            raise ValueError("RANK is %d and WORLD_SIZE is %d; expected a rank below the world size" % (rank, world))
        return cls(
            rank=rank,
            world=world,
            local_rank=rank % local_world if local_rank is None else local_rank,
            node=rank // local_world if node is None else node,
            local_world=local_world,
            run_id=os.environ.get("TORCHELASTIC_RUN_ID", ""),
            round=_number("DLROVER_ROUND"),
            restarts=_number("TORCHELASTIC_RESTART_COUNT") or 0,
        )


def of_replicated(directory, place, local_shards, shards, keep):
    """The identity of a process whose state is the same on all nodes, as in DDP.

    The first `local_shards` local ranks of a node write; with one shard in all (`shards`), each node has a copy.
    """
    if local_shards < 1 or shards < 1:
        raise ValueError(
            "local_shard_num is %r and global_shard_num is %r; expected 1 or more" % (local_shards, shards)
        )
    index = place.node * local_shards + place.local_rank % local_shards
    is_writer = place.local_rank < local_shards
    return _identity(
        directory,
        place,
        shard=index % shards,
        n_shards=shards,
        replicated=shards == 1,
        role="writer" if is_writer else "reader",
        format="pt",
        keep=keep,
        # The first copy of each shard.
        writes_disk=is_writer and index < shards,
    )


def of_sharded(directory, place, file_format, keep):
    """The identity of a process that has a part of the state of its own, as in FSDP."""
    if file_format not in FORMATS:
        raise ValueError("format is %r; expected one of %s" % (file_format, ", ".join(FORMATS)))
    return _identity(
        directory,
        place,
        shard=place.rank,
        n_shards=place.world,
        replicated=False,
        role="writer",
        format=file_format,
        keep=keep,
        writes_disk=True,
    )


def _identity(directory, place, **rest):
    return Identity(
        run_id=place.run_id,
        dir=absolute(directory),
        rank=place.rank,
        world=place.world,
        local_rank=place.local_rank,
        round=place.round,
        restarts=place.restarts,
        replicas=0,
        **rest
    )


def absolute(path):
    """An absolute path as text, without `..`. Raises ValueError for what is no path."""
    path = os.path.abspath(os.fsdecode(path))
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ValueError("the path %r is not valid UTF-8" % path)
    return path


def _number(name):
    try:
        number = int(os.environ[name])
    except (KeyError, ValueError):
        return None
    return number if number >= 0 else None


def _of_process_group():
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    try:
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    except Exception:
        # Not built with it, or not ready.
        pass
    return 0, 1
