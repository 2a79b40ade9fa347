"""Which steps stay on disk. The saver deletes the others; a strategy is only named here."""

from .notices import say_once

__all__ = ["CheckpointDeletionStrategy", "KeepLatestStepStrategy", "KeepStepIntervalStrategy", "keep_of"]


class CheckpointDeletionStrategy:
    """What strategies have in common."""

    def clean_up(self, step, delete_func):
        """Called by DLRover after each save; here strategies of other classes do nothing."""
        raise NotImplementedError


class KeepLatestStepStrategy(CheckpointDeletionStrategy):
    """Keeps the `max_to_keep` newest steps of `checkpoint_dir`; 1 at least."""

    def __init__(self, max_to_keep=1, checkpoint_dir=""):
        self.max_to_keep = _positive("max_to_keep", max_to_keep)
        self.checkpoint_dir = checkpoint_dir

    def clean_up(self, step, delete_func):
        """The saver deletes."""


class KeepStepIntervalStrategy(CheckpointDeletionStrategy):
    """Keeps the steps that are a multiple of `keep_interval`, and the newest one."""

    def __init__(self, keep_interval, checkpoint_dir=""):
        self.keep_interval = _positive("keep_interval", keep_interval)
        self.checkpoint_dir = checkpoint_dir

    def clean_up(self, step, delete_func):
        """The saver deletes."""


def keep_of(strategy):
    """The strategy as the saver understands it: None, {"latest": n} or {"interval": n}.

    Those of DLRover itself are understood too, by their attributes.
    """
    if strategy is None:
        return None
    name = type(strategy).__name__
    try:
        if name == "KeepLatestStepStrategy":
            return {"latest": _positive("max_to_keep", _attribute(strategy, "max_to_keep"))}
        if name == "KeepStepIntervalStrategy":
            return {"interval": _positive("keep_interval", _attribute(strategy, "keep_interval"))}
    except (AttributeError, TypeError, ValueError) as error:
        say_once("strategy", "deletion_strategy %s cannot be used, so all checkpoints are kept: %s" % (name, error))
        return None
    say_once(
        "strategy",
        "deletion_strategy %s is unknown, so all checkpoints are kept; use KeepLatestStepStrategy or "
        "KeepStepIntervalStrategy" % name,
    )
    return None


def _attribute(strategy, name):
    # DLRover keeps them with an underscore.
    return getattr(strategy, name) if hasattr(strategy, name) else getattr(strategy, "_" + name)


def _positive(name, value):
    if isinstance(value, bool) or int(value) != value or int(value) < 1:
        raise ValueError("%s is %r; expected a whole number of 1 or more" % (name, value))
    return int(value)
