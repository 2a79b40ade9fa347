"""Checkpoints of Lightning in memory, as its plug-in for the IO of checkpoints.

    io = FlashCheckpointIO("/checkpoints/run")
    trainer = Trainer(plugins=[io], callbacks=[ModelCheckpoint(dirpath="/checkpoints/run", every_n_train_steps=100)])
    trainer.fit(model, ckpt_path=io.resume_path())

Run with lightning 2.6, one process on the CPU; not run with DDP. Not for strategies that write directories,
such as FSDP.
"""

import os

try:
    from lightning.pytorch.plugins.io import CheckpointIO
except ImportError:
    from pytorch_lightning.plugins.io import CheckpointIO

from . import disk, documents
from .ddp import DdpCheckpointer
from .result import StorageType

__all__ = ["FlashCheckpointIO"]

# A path that stands for the newest state.
_NEWEST = "flash-checkpoint:newest"


class FlashCheckpointIO(CheckpointIO):
    """Every checkpoint goes into memory first; files that Lightning names are written in the background."""

    def __init__(self, checkpoint_dir, **options):
        super().__init__()
        self._checkpointer = DdpCheckpointer(checkpoint_dir, **options)
        self._newest = None

    def resume_path(self):
        """What `ckpt_path` must be to go on from the newest state; None when there is none."""
        self._newest = self._checkpointer.load_checkpoint() or None
        return _NEWEST if self._newest else None

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        self._checkpointer.save_checkpoint(checkpoint["global_step"], checkpoint, str(path), StorageType.DISK)

    def load_checkpoint(self, path, map_location=None, *args, **kwargs):
        if str(path) != _NEWEST:
            # It may be under way to the disk.
            self._checkpointer.wait_latest_checkpoint()
            return disk.load_file(path)
        state, self._newest = self._newest or self._checkpointer.load_checkpoint(), None
        if not state:
            raise FileNotFoundError("%s has no checkpoint" % self._checkpointer.checkpoint_dir)
        return state

    def remove_checkpoint(self, path):
        # Lightning removes what it thinks is on disk: it may be on its way, and the newest one must stay.
        self._checkpointer.wait_latest_checkpoint()
        try:
            tracked = documents.read_tracker(self._checkpointer.checkpoint_dir)
        except documents.Unusable:
            tracked = None
        try:
            manifests, _ = documents.read_manifests(self._checkpointer.checkpoint_dir)
        except documents.Unreadable:
            # It may be the newest one.
            return
        for step, manifest in manifests.items():
            names = [os.path.join(self._checkpointer.checkpoint_dir, each["file"]) for each in manifest["shards"]]
            if os.path.abspath(str(path)) in names:
                if step == tracked:
                    return
                documents.remove(documents.manifest_path(self._checkpointer.checkpoint_dir, step))
        documents.remove(str(path))

    def teardown(self):
        self._checkpointer.wait_latest_checkpoint()
