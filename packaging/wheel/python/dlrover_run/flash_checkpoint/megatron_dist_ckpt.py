"""Checkpoints of Megatron-LM in memory under the name that DLRover has for those of a distributed optimizer.

Not run, as `megatron`: here both are the same, since each rank saves what Megatron-LM would write of it.
"""

from .megatron import StorageType, load_checkpoint, save_checkpoint, wait_latest_checkpoint

__all__ = ["StorageType", "load_checkpoint", "save_checkpoint", "wait_latest_checkpoint"]
