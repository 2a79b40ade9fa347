"""What goes wrong between a worker and the saver of its node. Every text says what happened, why, and what to do."""

__all__ = [
    "FlashCheckpointError",
    "Nested",
    "NoSaver",
    "NothingIsThere",
    "NothingLoads",
    "RankAbsent",
    "SaverLost",
    "SaverRefused",
    "TooLarge",
    "UnderWay",
]


class FlashCheckpointError(Exception):
    """A checkpoint cannot be saved or loaded."""


class NoSaver(FlashCheckpointError):
    """There is no saver to talk to: checkpoints are written by this process itself.

    `key` names the reason, so that it is said once. `is_agreed`: all ranks know that they write themselves.
    """

    def __init__(self, key, text, is_agreed=False):
        super().__init__(text)
        self.key = key
        self.is_agreed = is_agreed


class SaverLost(FlashCheckpointError):
    """The connection to the saver ended in the middle of a request, or what came makes no sense.

    `timed_out`: the saver did not answer within the time limit; it may still be there. `is_closed`: the other end of
    the connection was closed, or is not there; on a new connection this says that there is no saver.
    """

    def __init__(self, text, timed_out=False, is_closed=False):
        super().__init__(text)
        self.timed_out = timed_out
        self.is_closed = is_closed


class SaverRefused(FlashCheckpointError):
    """The saver answered with an error. `code` is for programs, `reply` is the whole answer."""

    def __init__(self, reply):
        self.code = str(reply.get("code", "unknown"))
        self.reply = reply
        text = str(reply.get("text") or "the saver gave no reason") + _remedy(self.code, reply)
        super().__init__("%s (%s)" % (text, self.code))


def _remedy(code, reply):
    # The saver does not know the launcher's options.
    if code == "no_memory":
        return "; give the container more memory, or raise --flash-ckpt-memory"
    if code == "busy" and reply.get("persisting") is not None:
        return "; save less often, or allow three slots for each shard by a higher --flash-ckpt-memory"
    return ""


class TooLarge(FlashCheckpointError):
    """The state is more than the saver reads, so that it must be written to disk without it."""


class UnderWay(FlashCheckpointError):
    """Another call is under way, in this thread or another one. The connection to the saver is as it was."""


class Nested(UnderWay):
    """The call that is under way is one of the same thread."""


class RankAbsent(FlashCheckpointError):
    """A rank did not take part in time where all ranks must."""


class NothingLoads(FlashCheckpointError):
    """There is a checkpoint, but none loads. Training must not start from nothing."""


class NothingIsThere(NothingLoads):
    """The job restores a step from a directory that has none, as this process sees it."""
