"""What a trainer is told, on standard error."""

import os
import sys
import threading

_said = set()
# A signal handler may say something in the middle of it.
_lock = threading.RLock()


def say_once(key, text):
    """Prints `text` unless a text with this `key` was printed by this process. Never raises."""
    with _lock:
        if key in _said:
            return False
        _said.add(key)
    say(text)
    return True


def say(text):
    """Prints `text` with the name of this package and the rank. Never raises."""
    rank = os.environ.get("RANK")
    source = "flash checkpoint" if rank is None else "flash checkpoint, rank %s" % rank
    try:
        # In one write, so that lines of several workers do not mix.
        sys.stderr.write("[%s] %s\n" % (source, text))
        sys.stderr.flush()
    except Exception:
        # Standard error is closed.
        pass


def forget():
    """What was said may be said again: for tests."""
    with _lock:
        _said.clear()


def _unlock():
    # Another thread of the parent may have held it.
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_unlock)
