"""What callers of a checkpointer give and get."""

import collections
import enum

__all__ = ["LastLoad", "SaveResult", "StorageType"]


class StorageType(enum.Enum):
    """How far a save goes before it counts."""

    # Into the memory of this node, where it survives the process.
    MEMORY = enum.auto()
    # Into memory, and from there to disk in the background.
    DISK = enum.auto()


class SaveResult(collections.namedtuple("SaveResult", "ok step seconds superseded error")):
    """How a save ended. True when it did what was asked for.

    seconds     how long the call blocked training
    superseded  steps that were waiting for the disk, and will not be written: this save goes there instead
    error       None, or what happened, why, and what to do
    """

    __slots__ = ()

    def __bool__(self):
        return self.ok


# Where the last load came from: `source` is "memory", "disk", "file" (a path given by the caller) or "none"; `step` is
# the step or None; `reason` says why it was this source.
LastLoad = collections.namedtuple("LastLoad", "source step reason")


def saved(step, seconds, superseded=()):
    """A save that did what was asked for."""
    return SaveResult(True, step, seconds, tuple(superseded), None)


def not_saved(step, seconds, error, superseded=()):
    """A save that did not."""
    return SaveResult(False, step, seconds, tuple(superseded), error)
