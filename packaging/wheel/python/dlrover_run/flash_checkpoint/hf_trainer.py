"""transformers.Trainer with checkpoints in memory.

    trainer = FlashCkptTrainer(...)
    trainer.train(resume_from_checkpoint=trainer.get_last_checkpoint())

Run with transformers 5.24, one process and DDP on CPUs. Weights, optimizer, scheduler and the state of the trainer
are saved into memory and go to `checkpoint-<step>/flash_checkpoint.pt`; `get_last_checkpoint` makes the files of
transformers of it. What else a checkpoint has, such as the configuration and random states, is written at once as
always. `save_model` is as always, too. Not with DeepSpeed or FSDP.
"""

import os
import shutil

import torch
from transformers import Trainer

from . import documents, files
from .ddp import DdpCheckpointer
from .result import StorageType
from .strategies import KeepLatestStepStrategy

__all__ = ["FlashCkptTrainer"]

_PREFIX = "checkpoint-"
_FILE = "flash_checkpoint.pt"


class FlashCkptTrainer(Trainer):
    """A Trainer whose `_save_checkpoint` blocks for the copy into memory only. Resume with `get_last_checkpoint()`."""

    _flash_checkpointer = None
    _is_flash_save = False

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
        """The folder of the newest checkpoint, or False. All ranks call it. Its large files are written if needed."""
        state = self.flash_checkpointer.load_checkpoint()
        if not state:
            return False
        folder = self._folder(self.flash_checkpointer.last_load.step)
        if self.args.local_process_index == 0:
            files.unpack(folder, state)
        files.barrier()
        return folder

    def wait_latest_checkpoint(self, timeout=1800):
        """Waits until the newest checkpoint is on disk."""
        return self.flash_checkpointer.wait_latest_checkpoint(timeout)

    def _save_checkpoint(self, model, trial, *args, **kwargs):
        checkpointer = self.flash_checkpointer
        # Older folders are complete when this one is not yet: they go below, and by the strategy.
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        self._is_flash_save = True
        try:
            super()._save_checkpoint(model, trial, *args, **kwargs)
        finally:
            self._is_flash_save = False
            self.args.save_total_limit = limit
        step = self.state.global_step
        state = {
            "pytorch_model.bin": self.accelerator.unwrap_model(self.model).state_dict(),
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
        """Removes folders older than the newest checkpoint on disk whose checkpoints were deleted, or never came."""
        try:
            committed = documents.read_tracker(self.args.output_dir)
        except documents.Unusable:
            return
        manifests, _ = documents.read_manifests(self.args.output_dir)
        for name in os.listdir(self.args.output_dir):
            step = name[len(_PREFIX) :]
            if name.startswith(_PREFIX) and step.isdigit() and committed is not None and int(step) < committed:
                if int(step) not in manifests:
                    shutil.rmtree(os.path.join(self.args.output_dir, name), ignore_errors=True)


def _text_of(state):
    import dataclasses
    import json

    return json.dumps(dataclasses.asdict(state), indent=2, sort_keys=True)
