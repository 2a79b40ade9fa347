"""The connection to the saver: one JSON object a line, file descriptors beside it. Every request has a deadline."""

import array
import json
import os
import socket
import time
import weakref

from .call_lock import CallLock
from .errors import SaverLost, SaverRefused

# Bytes of a line at most, without the line feed.
_LONGEST_LINE = 1 << 20

# File descriptors with one line at most: more than a shard has slots.
_MOST_DESCRIPTORS = 16

_live = weakref.WeakSet()


class Connection:
    """A stream socket to the saver. Whatever goes wrong closes it: later requests would get earlier answers.

    `address` is a path, or `@` and an abstract name. `deadline` is a moment of time.monotonic().
    """

    def __init__(self, address, deadline):
        self._lock = CallLock()
        self._buffer = b""
        self._socket = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        _live.add(self)
        try:
            self._socket.settimeout(_remaining(deadline))
            self._socket.connect("\0" + address[1:] if address.startswith("@") else address)
        except socket.timeout:
            self.close()
            raise SaverLost("the saver at %s did not accept the connection in time" % address, timed_out=True)
        except (OSError, ValueError) as error:
            self.close()
            is_closed = isinstance(error, (ConnectionRefusedError, FileNotFoundError))
            raise SaverLost("cannot connect to the saver at %s: %s" % (address, error), is_closed=is_closed)

    @property
    def closed(self):
        """No request can be made any more."""
        return self._socket is None

    def close(self):
        """Closes the socket. The saver keeps what is whole."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __del__(self):
        self.close()

    def request(self, request, reply, deadline):
        """Sends `request` and returns the answer and its file descriptors, which the caller closes.

        `reply` is the type that the answer must have. Raises SaverRefused when the saver refuses, SaverLost when the
        connection ends, the deadline passes or the answer makes no sense, and UnderWay when there is another request.
        """
        what = request["type"]
        with self._lock.held("send `%s` to the saver" % what, deadline):
            if self._socket is None:
                raise SaverLost("cannot send `%s` to the saver: the connection is closed" % what)
            descriptors = []
            try:
                self._send(json.dumps(request, separators=(",", ":")).encode() + b"\n", deadline)
                line = self._line(descriptors, deadline)
                answer = _parsed(line, what)
                if answer.get("type") == "error":
                    _close_all(descriptors)
                    raise SaverRefused(answer)
                if answer.get("type") != reply:
                    raise SaverLost("the saver answered %s with %.200r; expected the type %s" % (what, answer, reply))
                return answer, descriptors
            except SaverRefused:
                raise
            except socket.timeout:
                self._give_up(descriptors)
                raise SaverLost("the saver did not answer %s in time" % what, timed_out=True)
            except OSError as error:
                self._give_up(descriptors)
                is_closed = isinstance(error, (BrokenPipeError, ConnectionResetError))
                text = "the connection to the saver broke during %s: %s" % (what, error)
                raise SaverLost(text, is_closed=is_closed)
            except BaseException:
                # An interrupt too: the answer would be taken for that of the next request.
                self._give_up(descriptors)
                raise

    def _give_up(self, descriptors):
        _close_all(descriptors)
        self.close()

    def _send(self, line, deadline):
        if len(line) > _LONGEST_LINE:
            raise SaverLost("a request to the saver has %d bytes (maximum: %d)" % (len(line), _LONGEST_LINE))
        view = memoryview(line)
        while view:
            self._socket.settimeout(_remaining(deadline))
            try:
                view = view[self._socket.send(view, socket.MSG_NOSIGNAL) :]
            except (BrokenPipeError, ConnectionResetError):
                # A saver that refuses a process says why and closes, perhaps before this line: that can still be read.
                return

    def _line(self, descriptors, deadline):
        ancillary = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
        while b"\n" not in self._buffer:
            if len(self._buffer) > _LONGEST_LINE:
                raise SaverLost("the saver sent a line of more than %d bytes" % _LONGEST_LINE)
            self._socket.settimeout(_remaining(deadline))
            data, messages, flags, _ = self._socket.recvmsg(1 << 16, ancillary, socket.MSG_CMSG_CLOEXEC)
            for level, kind, bytes_of_it in messages:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    numbers = array.array("i")
                    numbers.frombytes(bytes_of_it[: len(bytes_of_it) - len(bytes_of_it) % numbers.itemsize])
                    descriptors.extend(numbers)
            if flags & socket.MSG_CTRUNC:
                raise SaverLost(
                    "file descriptors of the saver were lost: this process may have too many open files (ulimit -n)"
                )
            if not data:
                raise SaverLost("the saver closed the connection", is_closed=True)
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        if self._buffer:
            raise SaverLost("the saver sent more than one answer")
        return line

    def _after_fork(self):
        # Only the descriptor goes: the connection of the parent stays.
        self.close()


def _parsed(line, what):
    try:
        answer = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise SaverLost("the answer of the saver to %s is not valid JSON: %s" % (what, error))
    if not isinstance(answer, dict):
        raise SaverLost("the saver answered %s with %.200r; expected an object" % (what, answer))
    return answer


def _remaining(deadline):
    left = deadline - time.monotonic()
    if left <= 0:
        raise socket.timeout("timed out")
    return left


def _close_all(descriptors):
    while descriptors:
        try:
            os.close(descriptors.pop())
        except OSError:
            pass


def _close_in_child():
    # A data loader's process would keep the connection of a dead worker open.
    for connection in list(_live):
        connection._after_fork()


os.register_at_fork(after_in_child=_close_in_child)
