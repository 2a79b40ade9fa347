"""A directory of torch.distributed.checkpoint without a saver: all ranks write it, and training waits."""

import contextlib
import fcntl
import os
import re
import shutil
import warnings

import torch
import torch.distributed.checkpoint as checkpoint

from . import documents, staged, synchronous

# A file with the parts of a rank.
_OF_RANK = re.compile(r"__\d+_\d+\.distcp")

_LEFTOVER = re.compile(r".+%s\d+" % re.escape(documents.TEMPORARY))


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
            documents.sum_of(identity.dir, os.path.join(path, name), os.path.join(temporary, name))
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
        try:
            names = _check_sizes(temporary, [shard for shard, _ in shards])
            _place(temporary, path, step, names)
        finally:
            # It is not there when it got its name.
            shutil.rmtree(temporary, ignore_errors=True)
        synchronous.commit(identity, step, [shard for shard, _ in shards])
        with contextlib.suppress(OSError):
            _remove_others(path, names)
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
        path = os.path.join(directory, name)
        if not _LEFTOVER.fullmatch(name) or os.path.islink(path) or not os.path.isdir(path):
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
    """The names of the files of a rank; `.metadata` is one of rank 0."""
    names = sorted(name for name in os.listdir(folder) if name.startswith("__%d_" % rank))
    if rank == 0:
        names.append(".metadata")
    return names


def _check_sizes(temporary, shards):
    """The names of all files of all ranks. Raises documents.Unusable unless each is there with its size."""
    names = []
    for shard in shards:
        for summed in [shard] + shard["also"]:
            names.append(os.path.basename(summed["file"]))
            try:
                documents.verify(os.path.join(temporary, names[-1]), summed, with_content=False)
            except documents.Unusable as error:
                raise documents.Unusable(
                    "a file of rank %d is not there: %s; a checkpoint directory must be on a file system that all "
                    "nodes share" % (shard["rank"], error)
                )
    return names


def _place(temporary, path, step, names):
    """Gives a directory its name. Into one that is there already, its files are staged: they get their names later."""
    documents.sync(temporary)
    if not os.path.lexists(path):
        os.rename(temporary, path)
        documents.sync(os.path.dirname(path))
        return
    for name in names:
        os.replace(os.path.join(temporary, name), staged.name_of(os.path.join(path, name), step))
    documents.sync(path)


def _remove_others(path, names):
    """Removes files of the ranks of another save into the same directory."""
    for name in os.listdir(path):
        if _OF_RANK.fullmatch(name) and name not in names:
            documents.remove(os.path.join(path, name))
