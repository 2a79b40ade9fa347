"""Checkpoints in the memory of the node: saved in a fraction of a second, written to disk in the background, and there
again after a failure.

Under dlrover-run, a saver process of each node has the memory. Elsewhere the same calls write to disk at once.
Standard library only, until tensors come.
"""

from .errors import FlashCheckpointError, NothingLoads
from .result import LastLoad, SaveResult, StorageType
from .strategies import KeepLatestStepStrategy, KeepStepIntervalStrategy

__all__ = [
    "DdpCheckpointer",
    "FlashCheckpointError",
    "FsdpFullCheckpointer",
    "FsdpShardCheckpointer",
    "KeepLatestStepStrategy",
    "KeepStepIntervalStrategy",
    "LastLoad",
    "NothingLoads",
    "SaveResult",
    "StorageType",
]


def __getattr__(name):
    # Each when it is used.
    if name == "DdpCheckpointer":
        from .ddp import DdpCheckpointer

        return DdpCheckpointer
    if name in ("FsdpShardCheckpointer", "FsdpFullCheckpointer"):
        from . import fsdp

        return getattr(fsdp, name)
    raise AttributeError("module %r has no attribute %r" % (__name__, name))
