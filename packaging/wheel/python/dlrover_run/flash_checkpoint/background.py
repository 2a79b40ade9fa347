"""Threads beside training. None is started, and none calls torch any more, once the interpreter ends.

Before 3.14, Python ends a daemon thread by force when the thread asks for the interpreter's lock after the end has
begun. In C++, as inside of torch, that aborts the process: a training that succeeded would end by SIGABRT, and be
restarted. See bpo-42969.
"""

import atexit
import threading
import time
import weakref

# Seconds until the threads have ended: a driver that hangs must not hold the end of training.
_LONGEST_END = 60.0

# Set when the interpreter ends: what may take long looks at it now and then.
ending = threading.Event()

_awaited = weakref.WeakSet()


def is_possible():
    """Whether a thread can be started: not in a handler of `atexit`, where Python 3.12 refuses it."""
    return threading.main_thread().is_alive()


def start(call, arguments, name, is_awaited=False):
    """Starts a daemon thread and returns it; None when the interpreter ends.

    `is_awaited`: the interpreter ends after it. For a `call` that uses torch, and returns soon after `ending` is set.
    """
    if not is_possible():
        return None
    thread = threading.Thread(target=call, args=arguments, name=name)
    # The interpreter would wait for others, without telling them.
    thread.daemon = True
    thread.start()
    if is_awaited:
        _awaited.add(thread)
    return thread


def _end():
    deadline = time.monotonic() + _LONGEST_END
    ending.set()
    for thread in list(_awaited):
        thread.join(max(deadline - time.monotonic(), 0))


# Handlers run before the end begins, while threads are as they were.
atexit.register(_end)
