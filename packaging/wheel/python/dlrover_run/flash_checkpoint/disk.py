"""What a checkpoint directory offers to a load, without a saver: tracker, manifests, and what is checked before."""

import collections
import os

from . import documents, plain_file, staged
from .errors import FlashCheckpointError, NothingLoads
from .notices import say

# A step that may load. `path` is the file or the directory to open; `manifest` is None for a step of DLRover.
Candidate = collections.namedtuple("Candidate", "step path manifest")


class Folder:
    """The documents of a directory, read once. Problems are said as they are found.

    Raises NothingLoads when it is not known what there is: it must not pass for an empty one.
    """

    def __init__(self, directory):
        self.directory = directory
        # Why steps were passed over.
        self.passed = []
        try:
            self.tracker = documents.read_tracker(directory)
            self._has_tracker = self.tracker is not None
        except documents.Unusable as error:
            self.tracker, self._has_tracker = None, True
            self.pass_over(str(error))
        try:
            self.manifests, self._unusable = documents.read_manifests(directory)
        except documents.Unreadable as error:
            raise NothingLoads(
                "no checkpoint in %s can be loaded: %s. Training does not start from scratch: give this user read "
                "access to the directory, repair its file system, or use another directory" % (directory, error)
            )

    def is_empty(self):
        """Nothing here was ever a checkpoint."""
        return not (self._has_tracker or self.manifests or self._unusable)

    def candidates(self, rank, shard, n_shards, at_most=None):
        """What may load, the best first: the step of the tracker, then older ones with a manifest.

        A step of the tracker without a manifest is one of DLRover, which writes `<step>/rank_<rank>.pt`. `at_most` is
        the step that counts, as the saver says: newer ones do not.
        """
        newest = self.tracker
        if newest is None:
            newest = max(self.manifests, default=None)
        if newest is None:
            return
        if at_most is not None:
            # Also when the tracker was set back.
            newest = at_most if at_most in self.manifests else min(newest, at_most)
        if newest not in self.manifests:
            path = self._path_of_dlrover(newest, rank)
            if newest in self._unusable:
                self.pass_over("the manifest of step %d: %s" % (newest, self._unusable[newest]))
            elif os.path.exists(path):
                yield Candidate(newest, path, None)
            else:
                self.pass_over("step %d, which the tracker names, has no manifest and no file %s" % (newest, path))
        for step in sorted((step for step in self.manifests if step <= newest), reverse=True):
            manifest = self.manifests[step]
            try:
                yield Candidate(step, self._path(manifest, shard, n_shards), manifest)
            except documents.Unusable as error:
                self.pass_over("step %d: %s" % (step, error))

    def candidate(self, step, has_manifest, rank, shard, n_shards):
        """One of those that another rank found. Raises documents.Unusable when it is not here."""
        manifest = self.manifests.get(step)
        if has_manifest != (manifest is not None):
            raise documents.Unusable(
                "rank 0 has %s manifest of it, rank %d has %s: all ranks must see the same directory"
                % (("a", rank, "none") if has_manifest else ("no", rank, "one"))
            )
        if has_manifest:
            return Candidate(step, self._path(manifest, shard, n_shards), manifest)
        path = self._path_of_dlrover(step, rank)
        if not os.path.exists(path):
            raise documents.Unusable("there is no file %s" % path)
        return Candidate(step, path, None)

    def verify(self, candidate, is_own):
        """Checks sizes of all files, and the content of those of the shards for which `is_own(shard)` holds.

        Returns the candidate as it can be opened. Raises documents.Unusable.
        """
        if candidate.manifest is None:
            return candidate
        for shard, summed in documents.files_of(candidate.manifest):
            path = os.path.join(self.directory, summed["file"])
            found = staged.find(self.directory, summed, candidate.step, with_content=is_own(shard))
            if found != path and candidate.manifest["format"] != "pt":
                raise documents.Unusable(
                    "%s cannot be renamed to %s, which readers of its directory expect; give this user write access"
                    % (found, path)
                )
            if path == candidate.path:
                candidate = candidate._replace(path=found)
        return candidate

    def pass_over(self, reason):
        """Says why a step does not load. An older one may."""
        self.passed.append(reason)
        say("not loaded from %s: %s" % (self.directory, reason))

    def nothing_loads(self):
        """The error when there is a checkpoint and none loads."""
        return NothingLoads(
            "no checkpoint in %s can be loaded: %s. Training does not start from scratch: restore the files, use "
            "another directory, or remove its tracker %s and its directory %s"
            % (self.directory, "; ".join(self.passed) or "no reason is known", documents.TRACKER, documents.FOLDER)
        )

    def _path_of_dlrover(self, step, rank):
        return os.path.join(self.directory, str(step), "rank_%d.pt" % rank)

    def _path(self, manifest, shard, n_shards):
        files = list(documents.files_of(manifest))
        if manifest["format"] != "pt":
            return os.path.dirname(os.path.join(self.directory, files[0][1]["file"]))
        if len(manifest["shards"]) not in (1, n_shards):
            # On all ranks, also on those that would find a file: they must load the same step.
            raise documents.Unusable("it has %d shards, and this run has %d" % (len(manifest["shards"]), n_shards))
        # With several shards only the own one can be read.
        wanted = 0 if len(manifest["shards"]) == 1 else shard
        for number, summed in files:
            if number == wanted or len(manifest["shards"]) == 1:
                return os.path.join(self.directory, summed["file"])
        raise documents.Unusable("it has no file of shard %d" % wanted)


def load_file(path):
    """What torch.save wrote.

    Checkpoints are trusted as the training script is: values that are no tensors are unpickled.
    """
    try:
        import torch
    except ImportError:
        return plain_file.read(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=False)
    except TypeError:
        # torch before 1.13.
        return torch.load(path, map_location="cpu")


def load_newest(directory, rank, shard, n_shards, at_most=None):
    """The newest state of a directory of `.pt` files, and its candidate; (None, None) when the directory has none.

    With several shards, the files of all of them are checked: other ranks look for themselves, and find the same step.
    `at_most` as for `Folder.candidates`. Raises NothingLoads, and FlashCheckpointError when another rank may find more.
    """
    folder = Folder(directory)
    if folder.is_empty():
        return None, None
    for candidate in folder.candidates(rank, shard, n_shards, at_most):
        try:
            check_format(candidate)
            candidate = folder.verify(candidate, lambda shard: True)
        except documents.Unreadable as error:
            if n_shards > 1:
                # Of this rank alone, perhaps.
                raise FlashCheckpointError(
                    "step %d: %s. Other ranks may be able to read it, so this worker does not load an older step"
                    % (candidate.step, error)
                )
            folder.pass_over("step %d: %s" % (candidate.step, error))
            continue
        except documents.Unusable as error:
            folder.pass_over("step %d: %s" % (candidate.step, error))
            continue
        try:
            return load_file(candidate.path), candidate
        except Exception as error:
            # torch.load raises anything for a damaged file.
            if n_shards > 1:
                raise not_loaded(candidate.step, candidate.path, error)
            folder.pass_over("step %d: %s" % (candidate.step, error))
    raise folder.nothing_loads()


def check_format(candidate):
    """Raises documents.Unusable for a step that is not of `.pt` files."""
    if candidate.manifest is not None and candidate.manifest["format"] != "pt":
        raise documents.Unusable("it is of format %s; expected pt" % candidate.manifest["format"])


def not_loaded(step, path, error):
    """The error for a file that was checked, and does not load."""
    return NothingLoads(
        "step %s cannot be loaded from %s, although its checksums are right: %s: %s"
        % (step, path, type(error).__name__, error)
    )
