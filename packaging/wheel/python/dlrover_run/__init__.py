"""Tells dlrover-run how far a worker has come, so that a worker that hangs is noticed.

    import dlrover_run

    for step in range(steps):
        train()
        dlrover_run.progress(step)
    with dlrover_run.busy("checkpoint"):
        save()

Outside of dlrover-run, all of it does nothing. Nothing of it raises.
"""

import functools
import os

__all__ = ["busy", "progress"]

# As many bytes as every write has: a shorter one leaves nothing of a longer one.
_LENGTH = 64

# Characters that the launcher reads of what a worker is busy with.
_LONGEST_WORD = 32

# In place of a step: a declaration without a number, and none at all, by which a pause ends that came before the first.
_NO_NUMBER, _UNDECLARED = "-", "~"

_file = _identity = None
_step = None
_busy_with = []


def progress(step=None):
    """Declares progress: this worker has finished `step`, a number of 0 or more, if there is one.

    Costs a write of 64 bytes into memory: a few microseconds.
    """
    global _step
    try:
        if step is not None:
            # Anything that is a number, such as a tensor.
            step = int(step)
            if 0 <= step < 1 << 64:
                _step = str(step)
    except Exception:
        pass
    _step = _step or _NO_NUMBER
    _write()


class busy(object):
    """Says what this worker is busy with: while the block runs, it is not hanging.

    It is stalled when it shows no progress meanwhile for --hang-grace, or for --hang-timeout if that is longer.

    `what` is one word, such as `checkpoint`. Blocks may be nested. A function may be decorated with it.
    """

    def __init__(self, what):
        word = "_".join(str(what).split())
        self._word = "".join(c for c in word if "!" <= c <= "~")[:_LONGEST_WORD] or "busy"

    def __enter__(self):
        _busy_with.append(self._word)
        _write()
        return self

    def __exit__(self, *error):
        _busy_with.remove(self._word)
        _write()

    def __call__(self, function):
        @functools.wraps(function)
        def busy_function(*args, **kwargs):
            with busy(self._word):
                return function(*args, **kwargs)

        return busy_function


def _write():
    global _file, _identity
    try:
        # A program that closes all descriptors may have given the number to a file of its own.
        if _file is None or _identity != _identity_of(_file):
            _file = None
            _file = os.open(os.environ["DLROVER_PROGRESS_FILE"], os.O_WRONLY | os.O_CLOEXEC)
            _identity = _identity_of(_file)
        step = _step or (_NO_NUMBER if _busy_with else _UNDECLARED)
        text = " ".join([step] + _busy_with[-1:])
        os.pwrite(_file, text.ljust(_LENGTH - 1).encode() + b"\n", 0)
    except KeyError:
        # Not under dlrover-run.
        pass
    except OSError:
        # The launcher is gone, its files are closed to this user, or the descriptor was closed: the next call opens it.
        _file = None


def _identity_of(file):
    found = os.fstat(file)
    return found.st_dev, found.st_ino
