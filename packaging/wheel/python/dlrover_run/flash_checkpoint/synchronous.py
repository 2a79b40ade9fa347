"""Saves without a saver: this process writes the files itself, and training waits."""

import os
import time

from . import documents, plain_file, staged
from .connection import Connection
from .errors import SaverLost, SaverRefused
from .notices import say_once
from .saver import PROTOCOL, VARIABLE

# Seconds until it is known that the job was told: the saver waits 10 s for what the agent tells it of this round.
_TELL_TIMEOUT = 12.0

# A connection that the dying saver had accepted ends; the next one starts another saver.
_TELL_ATTEMPTS, _TELL_PAUSE = 3, 0.2


def write_file(identity, step, state, path):
    """Writes `state` as torch.save does. Returns the description of the shard for a manifest.

    What has its name keeps it until `commit`.
    """
    path = path or os.path.join(identity.dir, str(step), "rank_%d.pt" % identity.rank)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    written = staged.place_for(identity.dir, path, step)
    with documents.replacing(written) as file:
        _write(state, file)
    return shard_of(identity, [documents.sum_of(identity.dir, path, written)])


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
    """Makes the step count, when all its files are there; then older steps go, as the strategy says.

    Raises documents.Unusable when a file is not there. What had the names of its files before is as it was then.
    """
    names = "world n_shards replicated format".split()
    manifest = dict({name: getattr(identity, name) for name in names}, version=documents.VERSION, step=step)
    manifest["shards"] = sorted(shards, key=lambda shard: shard["shard"])
    try:
        staged.check_sizes(identity.dir, manifest)
    except documents.Unusable:
        staged.remove(identity.dir, manifest)
        raise
    documents.write_manifest(identity.dir, manifest)
    documents.write_tracker(identity.dir, step)
    try:
        staged.publish(identity.dir, manifest)
    except (OSError, documents.Unreadable) as error:
        say_once(
            "publish",
            "step %d is on disk, but not all of its files could get their names: %s. load_checkpoint renames them; "
            "until then other programs find files of an older step there" % (step, error),
        )
    _tell_job(identity, step)
    try:
        _delete_older(identity.dir, step, identity.keep)
    except Exception as error:
        say_once("delete", "older checkpoints in %s cannot be deleted, so they stay: %s" % (identity.dir, error))


def _tell_job(identity, step):
    """Tells the job, by the saver of this node, that the step counts: the next round must not restore an older one.

    The job knows only what savers have told it. When a saver was lost, this connection starts another one.
    """
    address = os.environ.get(VARIABLE)
    if not address:
        # Not started by dlrover-run: the tracker decides what the next run restores.
        return
    request = {"type": "written_alone", "v": PROTOCOL, "step": step}
    request.update(run_id=identity.run_id, dir=identity.dir, round=identity.round)
    deadline = time.monotonic() + _TELL_TIMEOUT
    for attempt in range(_TELL_ATTEMPTS):
        try:
            connection = Connection(address, deadline)
            try:
                connection.request(request, "done", deadline)
                return
            finally:
                connection.close()
        except SaverRefused as error:
            failure = error
            break
        except SaverLost as error:
            failure = error
            if error.timed_out:
                break
            time.sleep(_TELL_PAUSE * attempt)
    say_once(
        "tell",
        "step %d is on disk in %s, but the job master could not be informed: %s. If workers are restarted now, they "
        "may restore an older step; a new run restores this one" % (step, identity.dir, failure),
    )


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
        documents.remove(documents.manifest_path(directory, step))
        staged.remove(directory, manifests[step])
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
