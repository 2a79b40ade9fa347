"""transformers.Trainer with checkpoints in memory.

    trainer = FlashCkptTrainer(...)
    trainer.train(resume_from_checkpoint=trainer.get_last_checkpoint())

Run with transformers 5.24, one process and DDP on CPUs. Weights, optimizer, scheduler and the state of the trainer
are saved into memory and go to `checkpoint-<step>/flash_checkpoint.pt`; `get_last_checkpoint` makes the files of
transformers of it. What else a checkpoint has, such as the configuration and random states, is written at once as
always. `save_model` is as always, too. Not with DeepSpeed or FSDP, nor with `load_best_model_at_end`.
"""

import os
import shutil

import torch
from transformers import Trainer

from . import documents, files
from .ddp import DdpCheckpointer
from .errors import FlashCheckpointError
from .result import StorageType
from .strategies import KeepLatestStepStrategy

__all__ = ["FlashCkptTrainer"]

_PREFIX = "checkpoint-"
_FILE = "flash_checkpoint.pt"

_WEIGHTS = "pytorch_model.bin"

# What transformers would load instead of the weights of this class: of another save into the same directory.
_OTHER_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin.index.json")

# In directories that this class has made: others are not deleted, such as those of the Trainer of transformers.
_MARK = ".flash_checkpoint"


class FlashCkptTrainer(Trainer):
    """A Trainer whose `_save_checkpoint` blocks for the copy into memory only. Resume with `get_last_checkpoint()`."""

    _flash_checkpointer = None
    _is_flash_save = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.args.load_best_model_at_end:
            raise ValueError(
                "load_best_model_at_end is True, but the checkpoints of FlashCkptTrainer have no file of the model, "
                "and the oldest ones are deleted; set it to False, and save the best model with save_model() when the "
                "metric improves"
            )

    @property
    def flash_checkpointer(self):
        """The checkpointer of `output_dir`."""
        if self._flash_checkpointer is None:
            if self.is_deepspeed_enabled or self.is_fsdp_enabled:
                raise ValueError("FlashCkptTrainer supports one process and DDP, not DeepSpeed or FSDP")
            limit = self.args.save_total_limit
            keep = KeepLatestStepStrategy(limit, self.args.output_dir) if limit else None
            self._flash_checkpointer = DdpCheckpointer(self.args.output_dir, deletion_strategy=keep)
        return self._flash_checkpointer

    def get_last_checkpoint(self):
        """The directory of the newest checkpoint, or False. All ranks call it. Its large files are written anew."""
        state = self.flash_checkpointer.load_checkpoint()
        if not state:
            return False
        folder = self._folder(self.flash_checkpointer.last_load.step)
        if self.args.local_process_index == 0:
            _check_owner(folder)
            os.makedirs(folder, exist_ok=True)
            _mark(folder)
            files.unpack(folder, state)
            for name in _OTHER_WEIGHTS:
                documents.remove(os.path.join(folder, name))
        files.barrier()
        return folder

    def wait_latest_checkpoint(self, timeout=1800):
        """Waits until the newest checkpoint is on disk."""
        return self.flash_checkpointer.wait_latest_checkpoint(timeout)

    def _save_checkpoint(self, model, trial, *args, **kwargs):
        checkpointer = self.flash_checkpointer
        # Older directories are complete when this one is not yet: they go below, and by the strategy.
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        self._is_flash_save = True
        try:
            super()._save_checkpoint(model, trial, *args, **kwargs)
        finally:
            self._is_flash_save = False
            self.args.save_total_limit = limit
        step = self.state.global_step
        if self.args.should_save:
            _mark(self._folder(step))
        state = {
            _WEIGHTS: self.accelerator.unwrap_model(self.model).state_dict(),
            "optimizer.pt": self.optimizer.state_dict(),
            "scheduler.pt": self.lr_scheduler.state_dict(),
            "trainer_state.json": _text_of(self.state),
        }
        checkpointer.save_checkpoint(step, state, os.path.join(self._folder(step), _FILE), StorageType.DISK)
        if limit and self.args.should_save:
            self._delete_leftovers()

    def _save(self, output_dir=None, state_dict=None):
        if not self._is_flash_save:
            return super()._save(output_dir, state_dict)
        if self.args.should_save:
            os.makedirs(output_dir, exist_ok=True)
            for part in (getattr(self.model, "config", None), getattr(self, "processing_class", None)):
                if hasattr(part, "save_pretrained"):
                    part.save_pretrained(output_dir)
            torch.save(self.args, os.path.join(output_dir, "training_args.bin"))

    def _save_optimizer_and_scheduler(self, output_dir):
        if not self._is_flash_save:
            super()._save_optimizer_and_scheduler(output_dir)

    def _folder(self, step):
        return os.path.join(self.args.output_dir, "%s%d" % (_PREFIX, step))

    def _delete_leftovers(self):
        """Removes directories that this class has made whose checkpoints were deleted, or never came.

        They are older than the newest checkpoint on disk. Never the best one.
        """
        directory = self.args.output_dir
        try:
            committed = documents.read_tracker(directory)
            manifests, _ = documents.read_manifests(directory)
        except documents.Unusable:
            return
        if committed is None:
            return
        for name in os.listdir(directory):
            step = name[len(_PREFIX) :]
            if not (name.startswith(_PREFIX) and step.isdigit() and int(step) < committed) or int(step) in manifests:
                continue
            folder = os.path.join(directory, name)
            best = self.state.best_model_checkpoint
            if best and os.path.abspath(best) == os.path.abspath(folder):
                continue
            if _is_own(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _mark(folder):
    with open(os.path.join(folder, _MARK), "w"):
        pass


def _is_own(folder):
    """Whether this class has made a directory, or has saved into it."""
    return any(os.path.exists(os.path.join(folder, own)) for own in (_MARK, _FILE))


def _check_owner(folder):
    """Raises FlashCheckpointError for a directory with weights that this class has not written.

    They would be replaced, or transformers would load them instead of those of the checkpoint.
    """
    if _is_own(folder):
        return
    for name in _OTHER_WEIGHTS + (_WEIGHTS,):
        if os.path.lexists(os.path.join(folder, name)):
            raise FlashCheckpointError(
                "the newest checkpoint cannot be put into %s: FlashCkptTrainer has not made this directory, and its "
                "%s would be replaced; move the directory away, or use another output_dir" % (folder, name)
            )


def _text_of(state):
    import dataclasses
    import json

    return json.dumps(dataclasses.asdict(state), indent=2, sort_keys=True)
