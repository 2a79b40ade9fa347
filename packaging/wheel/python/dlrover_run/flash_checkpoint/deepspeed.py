"""Checkpoints of a DeepSpeed engine in memory.

    checkpointer = DeepSpeedCheckpointer(engine, "/checkpoints/run")
    checkpointer.load_checkpoint("/checkpoints/run")
    ...
    checkpointer.save_checkpoint("/checkpoints/run", tag, storage_type=StorageType.MEMORY)

Run with deepspeed 0.19, ZeRO stage 1 with two ranks on CPUs; other stages were not run. Each rank saves what DeepSpeed
would write as one state, and `load_checkpoint` makes the files of DeepSpeed of it in the directory,
which all ranks see.
"""

import os
import re

from . import documents, files
from .result import StorageType

__all__ = ["DeepSpeedCheckpointer", "StorageType"]


class DeepSpeedCheckpointer:
    """Saves and loads as `engine.save_checkpoint` and `engine.load_checkpoint` do. All ranks call it."""

    def __init__(self, engine, checkpoint_dir, comm_backend="", deletion_strategy=None, save_timeout=600):
        self.engine = engine
        self._checkpointer = files.RankCheckpointer(checkpoint_dir, comm_backend, deletion_strategy, save_timeout)
        self.checkpoint_dir = self._checkpointer.checkpoint_dir

    @property
    def last_load(self):
        """Where the last load came from."""
        return self._checkpointer.last_load

    def save_checkpoint(self, save_dir, tag=None, client_state={}, save_latest=True, storage_type=StorageType.DISK):
        """Saves the engine under `tag`, whose last number is the step. Returns a SaveResult."""
        step = self.engine.global_steps
        tag = "global_step%d" % step if tag is None else str(tag)
        numbers = re.findall(r"\d+", tag)
        step = int(numbers[-1]) if numbers else step
        with files.collected(save_dir) as kept:
            # Its file `latest` would name what is not there yet.
            self.engine.save_checkpoint(save_dir, tag, dict(client_state), save_latest=False)
        state = {"tag": tag, "save_latest": bool(save_latest), "files": kept}
        path = os.path.join(self.checkpoint_dir, "flash", tag, "rank_%d.pt" % self._checkpointer._place.rank)
        return self._checkpointer.save_checkpoint(step, state, path, storage_type)

    def load_checkpoint(
        self,
        load_dir,
        tag=None,
        load_module_strict=True,
        load_optimizer_states=True,
        load_lr_scheduler_states=True,
        load_module_only=False,
        custom_load_fn=None,
    ):
        """Loads the newest state, or with a tag that one from disk. Returns what `engine.load_checkpoint` returns."""
        if tag is None:
            state = self._checkpointer.load_checkpoint()
            if state:
                tag = state["tag"]
                files.unpack(load_dir, state["files"])
                if state["save_latest"] and self._checkpointer._place.rank == 0:
                    documents.write(os.path.join(load_dir, "latest"), tag.encode())
            files.barrier()
        return self.engine.load_checkpoint(
            load_dir,
            tag=tag,
            load_module_strict=load_module_strict,
            load_optimizer_states=load_optimizer_states,
            load_lr_scheduler_states=load_lr_scheduler_states,
            load_module_only=load_module_only,
            custom_load_fn=custom_load_fn,
        )

    def wait_latest_checkpoint(self, timeout=1800):
        """Waits until the newest state that is to go to disk is there."""
        return self._checkpointer.wait_latest_checkpoint(timeout)
