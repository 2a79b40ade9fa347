"""A folder of torch.distributed.checkpoint without a saver: all ranks write it, and training waits."""

import os
import shutil
import warnings

import torch
import torch.distributed.checkpoint as checkpoint

from . import documents, synchronous


def write(identity, place, exchange, step, state, path):
    """Writes the folder of a step. All ranks call it. Raises in all ranks when one of them fails."""
    path = path or os.path.join(identity.dir, str(step))
    # The same name for all, and that of a process which lives as long as the write.
    mine = documents.temporary_name(path)
    temporary = exchange.together("name %d" % step, mine, lambda names: names[:1] * len(names))
    try:
        _save(state, temporary)
        sums = [
            _named(documents.sum_of(identity.dir, name), name, temporary, path, identity)
            for name in _files_of(temporary, place.rank)
        ]
        mine = synchronous.shard_of(identity, sums), None
    except Exception as error:
        mine = None, "rank %d: %s: %s" % (place.rank, type(error).__name__, error)

    def decide(shards):
        fault = next((fault for _, fault in shards if fault), None)
        if fault:
            shutil.rmtree(temporary, ignore_errors=True)
            raise OSError(fault)
        _replace(temporary, path)
        synchronous.commit(identity, step, [shard for shard, _ in shards])
        return [None] * len(shards)

    exchange.together("write %d" % step, mine, decide)


def _save(state, folder):
    writer = checkpoint.FileSystemWriter(folder)
    planner = checkpoint.DefaultSavePlanner(dedup_save_to_lowest_rank=True)
    with warnings.catch_warnings():
        # That there is no process group.
        warnings.simplefilter("ignore")
        if hasattr(checkpoint, "save"):
            checkpoint.save(state, storage_writer=writer, planner=planner)
        else:
            # torch before 2.2.
            alone = not torch.distributed.is_initialized()
            checkpoint.save_state_dict(state, writer, planner=planner, no_dist=alone)


def _files_of(folder, rank):
    """The files of a rank; `.metadata` is one of rank 0."""
    names = sorted(name for name in os.listdir(folder) if name.startswith("__%d_" % rank))
    if rank == 0:
        names.append(".metadata")
    return [os.path.join(folder, name) for name in names]


def _named(summed, name, temporary, path, identity):
    final = os.path.join(path, os.path.relpath(name, temporary))
    below = os.path.relpath(final, identity.dir)
    return dict(summed, file=final if below.startswith(os.pardir) else below)


def _replace(temporary, path):
    """Gives a folder its name; one that is there already goes."""
    old = None
    if os.path.isdir(path):
        old = path + ".dlrover-old-%d" % os.getpid()
        os.rename(path, old)
    os.rename(temporary, path)
    documents.sync(os.path.dirname(path))
    if old:
        shutil.rmtree(old, ignore_errors=True)
