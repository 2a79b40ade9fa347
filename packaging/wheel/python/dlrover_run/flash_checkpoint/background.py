"""Threads beside training. None of them is inside of torch while the interpreter ends.

Before 3.14, Python ends a daemon thread by force when the thread asks for the interpreter's lock after the end has
begun. In C++, as inside of torch, that aborts the process: a training that succeeded would end by SIGABRT, and be
restarted. See bpo-42969.
"""

import atexit
import contextlib
import os
import threading

# Seconds that the end waits: a driver that hangs must not hold it for ever.
_LONGEST_END = 60.0


class _End:
    """Of the interpreter: whether it has begun, and how many threads it waits for."""

    def __init__(self):
        self.has_begun = False
        self.waits_for = 0
        self.changed = threading.Condition()


_end = _End()


def is_ending():
    """Whether the interpreter ends: what takes long looks at it now and then."""
    return _end.has_begun


@contextlib.contextmanager
def before_end():
    """A block that the interpreter does not end in. Gives False when it is ending already: then nothing may be done."""
    end = _end
    with end.changed:
        is_allowed = not end.has_begun
        end.waits_for += is_allowed
    try:
        yield is_allowed
    finally:
        with end.changed:
            end.waits_for -= is_allowed
            end.changed.notify_all()


def start(call, arguments, name):
    """Starts a daemon thread and returns it; None when there cannot be one.

    At its end the interpreter takes none, and a container has a limit of them. What threads do here makes later calls
    faster: no call fails for the lack of one.
    """
    # The interpreter would wait for threads that are no daemons, without telling them.
    return _started(threading.Thread(target=call, args=arguments, name=name, daemon=True))


def start_later(seconds, call, arguments=()):
    """Calls in a thread after a while, unless there cannot be one."""
    timer = threading.Timer(seconds, call, arguments)
    timer.daemon = True
    _started(timer)


def _started(thread):
    if _end.has_begun:
        return None
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def _wait():
    with _end.changed:
        _end.has_begun = True
        _end.changed.wait_for(lambda: not _end.waits_for, _LONGEST_END)


def _after_fork():
    # Threads of the parent are not here, and one of them may have held the lock.
    global _end
    _end = _End()


# Handlers run before the end begins, while threads are as they were.
atexit.register(_wait)
os.register_at_fork(after_in_child=_after_fork)
