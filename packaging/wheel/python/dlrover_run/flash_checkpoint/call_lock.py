"""A lock that is waited for until a deadline, and never by the thread that has it."""

import contextlib
import os
import threading
import time

from .errors import Nested, UnderWay


class CallLock:
    """For calls that may take long. A signal handler may run in the middle of one, and must not wait for it."""

    def __init__(self):
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._is_held = False

    @contextlib.contextmanager
    def held(self, what, deadline):
        """Holds the lock. Raises UnderWay when another thread has it until `deadline`, Nested when this one has it."""
        if self._process != os.getpid():
            # Another thread of the parent may have held it.
            self.__init__()
        if not self._lock.acquire(timeout=max(deadline - time.monotonic(), 0)):
            raise UnderWay(
                "cannot %s: a call of another thread did not end in time; use a checkpointer in one thread at a "
                "time" % what
            )
        if self._is_held:
            self._lock.release()
            raise Nested(
                "cannot %s in the middle of another call of the same thread, as in a signal handler; let the "
                "handler set a flag, and call after the training step" % what
            )
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            self._lock.release()
