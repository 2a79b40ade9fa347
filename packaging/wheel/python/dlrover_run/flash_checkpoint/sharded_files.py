"""A directory of torch.distributed.checkpoint without a saver: all ranks write it, and training waits."""

import contextlib
import fcntl
import os
import re
import shutil
import warnings

import torch
import torch.distributed.checkpoint as checkpoint

from . import documents, synchronous

# A directory whose place another one takes: in its name, before the id of the process.
_OLD = ".dlrover-old-"

_LEFTOVER = re.compile(r"(.+)(%s|%s)\d+" % (re.escape(documents.TEMPORARY), re.escape(_OLD)))


def write(identity, place, exchange, step, state, path):
    """Writes the directory of a step. All ranks call it. Raises in all ranks when one of them fails."""
    path = path or os.path.join(identity.dir, str(step))
    with contextlib.ExitStack() as locked:
        # The same name for all, and that of a process which lives as long as the write.
        temporary = exchange.together("name %d" % step, None, lambda each: [_new_folder(path, locked)] * len(each))
        _write(identity, place, exchange, step, state, path, temporary)


def _write(identity, place, exchange, step, state, path, temporary):
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


def _new_folder(path, locked):
    """The name of a directory that is locked until the end of `locked`, beside `path`. Leftovers of others go."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    sweep(os.path.dirname(path))
    temporary = documents.temporary_name(path)
    shutil.rmtree(temporary, ignore_errors=True)
    os.mkdir(temporary)
    descriptor = os.open(temporary, os.O_RDONLY)
    locked.callback(os.close, descriptor)
    documents.lock(descriptor)
    return temporary


def sweep(directory):
    """Removes directories that killed processes have left: those that are not locked. Another job may write here, too."""
    for name in os.listdir(directory):
        found = _LEFTOVER.fullmatch(name)
        path = os.path.join(directory, name)
        if not found or os.path.islink(path) or not os.path.isdir(path):
            continue
        if found.group(2) == _OLD and not os.path.isdir(os.path.join(directory, found.group(1))):
            # The process was killed in the middle of a replacement: this is all that there is of the step.
            continue
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            # It is being written, or nothing says that it is not.
            pass
        finally:
            os.close(descriptor)


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
    """Gives a directory its name; one that is there already goes."""
    old = None
    if os.path.isdir(path):
        old = "%s%s%d" % (path, _OLD, os.getpid())
        os.rename(path, old)
    os.rename(temporary, path)
    documents.sync(os.path.dirname(path))
    if old:
        shutil.rmtree(old, ignore_errors=True)
