"""Saves without a saver: this process writes the files itself, and training waits."""

import os

from . import documents, plain_file
from .notices import say_once


def write_file(identity, step, state, path):
    """Writes `state` as torch.save does. Returns the description of the shard for a manifest."""
    path = path or os.path.join(identity.dir, str(step), "rank_%d.pt" % identity.rank)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with documents.replacing(path) as file:
        _write(state, file)
    return shard_of(identity, [documents.sum_of(identity.dir, path)])


def _write(state, file):
    try:
        import torch
    except ImportError:
        plain_file.write(state, file)
    else:
        torch.save(state, file)


def shard_of(identity, sums):
    """The description of a shard that has these files."""
    names = "shard rank n_shards world replicated format".split()
    return dict({name: getattr(identity, name) for name in names}, also=sums[1:], **sums[0])


def commit(identity, step, shards):
    """Makes the step count: its manifest, then the tracker; then older steps go, as the strategy says."""
    names = "world n_shards replicated format".split()
    manifest = dict({name: getattr(identity, name) for name in names}, version=documents.VERSION, step=step)
    manifest["shards"] = sorted(shards, key=lambda shard: shard["shard"])
    documents.write_manifest(identity.dir, manifest)
    documents.write_tracker(identity.dir, step)
    try:
        _delete_older(identity.dir, step, identity.keep)
    except Exception as error:
        say_once("delete", "older checkpoints in %s cannot be deleted, so they stay: %s" % (identity.dir, error))


def _delete_older(directory, committed, keep):
    if not keep:
        return
    manifests, _ = documents.read_manifests(directory)
    older = sorted(step for step in manifests if step < committed)
    if "latest" in keep:
        gone = older[: max(0, len(older) - (keep["latest"] - 1))]
    else:
        gone = [step for step in older if step % keep["interval"]]
    stay = {
        summed["file"]
        for step, manifest in manifests.items()
        if step not in gone
        for _, summed in documents.files_of(manifest)
    }
    for step in gone:
        # Without its manifest it does not count, whatever is left of it.
        documents.remove(os.path.join(directory, documents.FOLDER, "%d.json" % step))
        for _, summed in documents.files_of(manifests[step]):
            if (
                summed["file"] not in stay
                and not os.path.isabs(summed["file"])
                and ".." not in summed["file"].split("/")
            ):
                documents.remove(os.path.join(directory, summed["file"]))
        try:
            os.rmdir(os.path.join(directory, str(step)))
        except OSError:
            # Not empty, or not there.
            pass
