"""What a checkpoint folder offers to a load, without a saver: tracker, manifests, and what is checked before."""

import collections
import os

from . import documents, plain_file
from .errors import NothingLoads
from .notices import say

# A step that may load. `path` is the file or the folder to open; `manifest` is None for a step of DLRover.
Candidate = collections.namedtuple("Candidate", "step path manifest")


class Folder:
    """The documents of a folder, read once. Problems are said as they are found."""

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
        self.manifests, self._unusable = documents.read_manifests(directory)

    def is_empty(self):
        """Nothing here was ever a checkpoint."""
        return not (self._has_tracker or self.manifests or self._unusable)

    def candidates(self, rank, shard, n_shards):
        """What may load, the best first: the step of the tracker, then older ones with a manifest.

        A step of the tracker without a manifest is one of DLRover, which writes `<step>/rank_<rank>.pt`.
        """
        newest = self.tracker
        if newest is None:
            newest = max(self.manifests, default=None)
        if newest is None:
            return
        if newest not in self.manifests:
            path = os.path.join(self.directory, str(newest), "rank_%d.pt" % rank)
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

    def verify(self, candidate, is_own):
        """Checks sizes of all files, and the content of those of the shards for which `is_own(shard)` holds.

        Raises documents.Unusable.
        """
        if candidate.manifest is not None:
            for shard, summed in documents.files_of(candidate.manifest):
                documents.verify(self.directory, summed, with_content=is_own(shard))

    def pass_over(self, reason):
        """Says why a step does not load. An older one may."""
        self.passed.append(reason)
        say("not loaded from %s: %s" % (self.directory, reason))

    def nothing_loads(self):
        """The error when there is a checkpoint and none loads."""
        return NothingLoads(
            "no checkpoint in %s can be loaded: %s. Training does not start from scratch: restore the files, use "
            "another folder, or remove its tracker %s and its folder %s"
            % (self.directory, "; ".join(self.passed) or "no reason is known", documents.TRACKER, documents.FOLDER)
        )

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


def load_newest(directory, rank, shard, n_shards):
    """The newest state of a folder of `.pt` files, and its candidate; (None, None) when the folder has none.

    Raises NothingLoads.
    """
    folder = Folder(directory)
    if folder.is_empty():
        return None, None
    for candidate in folder.candidates(rank, shard, n_shards):
        if candidate.manifest is not None and candidate.manifest["format"] != "pt":
            folder.pass_over("step %d is of format %s; expected pt" % (candidate.step, candidate.manifest["format"]))
            continue
        try:
            own = (0, shard) if candidate.manifest and len(candidate.manifest["shards"]) == 1 else (shard,)
            folder.verify(candidate, own.__contains__)
            return load_file(candidate.path), candidate
        except Exception as error:
            # torch.load raises anything for a damaged file.
            folder.pass_over("step %d: %s" % (candidate.step, error))
    raise folder.nothing_loads()
