"""The saver of this node, as one shard sees it: one connection, the slots, and what was read from them."""

import functools
import os
import queue
import threading
import time

from . import accelerator, background, header
from .connection import Connection
from .errors import FlashCheckpointError, NoSaver, SaverLost, SaverRefused, UnderWay
from .restoring import Restored
from .slot import Slot

# The address of the saver.
VARIABLE = "DLROVER_CKPT_SOCK"

PROTOCOL = 1

# Seconds until the first answer: the saver itself waits 10 s for what the agent tells it of this round.
_HELLO_TIMEOUT = 30.0

# Seconds until a saver that was lost is asked again; doubled each time, up to the second.
_FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 600.0

# Seconds that the saver may look for a checkpoint and check its files at most, and a little more.
LOAD_TIMEOUT = 1830.0

# Seconds that an answer to `wait` may be late.
_WAIT_GRACE = 10.0

# Answers to `hello` after which it is asked again: the round is not known yet; the process before this one is dying.
_NOT_YET = ("not_ready", "writer_exists")

# Answers after which this process may write to disk itself. After the others another process is in charge.
_ALONE = ("not_ready", "too_many", "version")


_TWO_OF_THEM = (
    "another checkpointer of this process saved another state into the same directory; give each checkpointer a "
    "directory of its own"
)

# Slots of a shard that have their memory from the beginning; the others get it when a write to disk begins.
_FILLED = 2

# Bytes that a thread gives memory to before it looks whether it is to end: tenths of a second.
_FILLED_AT_ONCE = 1 << 28

# Seconds from the load of a process that does not save until its tensors get memory of their own: what is copied to an
# accelerator is gone by then.
_READER_PAUSE = 10.0

# Seconds until a slot that could not be released is tried again.
_RELEASE_PAUSE = 10.0

# What was read from slots of a shard, by directory and shard: it is of this process, whichever object loaded it.
_restored = {}
# A signal handler may release something in the middle of it.
_releasing = threading.RLock()

# (Saver, Restored) that nothing uses any more; a thread reads it. None before the first one.
_unused_queue = None


# Of the identity, in `hello`.
_SAID = "run_id dir rank world local_rank shard n_shards replicated role round format keep replicas"


class Saver:
    """Every call ends within `timeout` seconds, or the time that it is given. Not for several threads at once."""

    def __init__(self, identity, timeout):
        self.identity = identity
        self.timeout = float(timeout)
        self.epoch = 0
        self.welcome = {}
        self._connection = None
        self._slots = {}
        self._layout = None
        self._restored = _restored.setdefault((identity.dir, identity.shard), [])
        self._detacher = None
        # The threads that give slots their memory, and what ends them.
        self._fillers, self._stop_filling = [], threading.Event()
        self._is_filled = False
        # After a failure: the moment of the next attempt, and what is raised until then.
        self._not_before, self._failure = 0.0, None
        self._pause = _FIRST_PAUSE
        self._process = os.getpid()

    def connect(self):
        """Makes sure that there is a connection.

        Raises NoSaver when there is no saver, and SaverLost when that is not known: it may live, and not answer.
        """
        if self._process != os.getpid():
            self._forget_parent()
        if self._connection is not None and not self._connection.closed:
            return
        address = os.environ.get(VARIABLE)
        if not address:
            raise NoSaver(
                "no address",
                "%s is not set, so there is no saver; start the script with dlrover-run" % VARIABLE,
            )
        now = time.monotonic()
        if now < self._not_before:
            raise self._failure.with_traceback(None)
        try:
            self._hello(address, now + min(self.timeout, _HELLO_TIMEOUT))
        except SaverLost as error:
            raise self.lose(NoSaver("lost", str(error)) if error.is_closed else error)
        except SaverRefused as error:
            raise self.lose(error)
        self._pause, self._failure = _FIRST_PAUSE, None

    def prepare(self, layout, device):
        """Gets slots for states of this layout and gives them memory, pinned for GPU `device` unless it is None.

        Takes long the first time. To be called in a thread of its own.
        """
        self.connect()
        self._alloc(layout, time.monotonic() + self.timeout)
        _fill(self._slots_to_fill(False), layout, device, self._stop_filling)

    def save(self, layout, flat, step, wish):
        """Writes a state into a slot and commits it. `wish`: the fields of `commit` about disks.

        Returns the steps that are not written to disk because of this one. Raises SaverRefused, SaverLost, NoSaver, and
        whatever a copy raises.
        """
        self.connect()
        deadline = time.monotonic() + self.timeout
        self._release_unused(deadline)
        is_new = self._alloc(layout, deadline)
        to_disk = wish["storage"] == "disk" and wish["writes_disk"]
        begin = {"type": "begin", "step": step, "layout_id": layout.id, "wait": to_disk}
        try:
            begun, _ = self._ask(begin, "begun", deadline)
        except SaverRefused as error:
            if error.code == "out_of_order":
                # The next save gets slots of its own again.
                self._slots, self._layout = {}, None
                raise FlashCheckpointError(_TWO_OF_THEM) from error
            raise
        slot = self._slots.get(begun.get("slot"))
        if slot is None:
            raise self._broken("it gave slot %r, which was not allocated before" % begun.get("slot"))
        try:
            if begun.get("pinned"):
                self._detach_now(slot.number)
            slot.write(layout, flat, self.identity, step, self.epoch)
        except BaseException:
            self._abort(slot)
            raise
        self._ask(dict({"type": "commit", "step": step, "slot": slot.number}, **wish), "done", deadline)
        if is_new or to_disk and not self._is_filled:
            # The slots of later saves get their memory while training goes on.
            device = accelerator.device_of(flat.tensors)
            arguments = (self._slots_to_fill(to_disk), layout, device, self._stop_filling)
            filler = background.start(_fill, arguments, "flash-checkpoint-fill")
            self._fillers.extend([filler] if filler else [])
        self.detach()
        return [number for number in begun.get("superseded") or [] if isinstance(number, int)]

    def reserve(self, layout):
        """Makes sure that there are slots for states of this layout. Raises as `save` does."""
        self.connect()
        self._alloc(layout, time.monotonic() + self.timeout)

    def load(self, step=None, without=()):
        """Asks where to load from. Returns the answer, and a Restored when it is in memory; `without` is for it.

        What cannot be read in memory is an answer of source `damaged`, with the reason.
        """
        self.connect()
        deadline = time.monotonic() + max(self.timeout, LOAD_TIMEOUT)
        answer, descriptors = self._ask({"type": "load", "step": step}, "loaded", deadline)
        if answer.get("source") not in ("memory", "replica"):
            _close(descriptors)
            return answer, None
        size = answer.get("bytes")
        if len(descriptors) != 1 or not isinstance(size, int):
            count = len(descriptors)
            _close(descriptors)
            raise self._broken("it sent %d file descriptors for a state in memory; expected 1" % count)
        try:
            restored = Restored(answer.get("slot"), size, descriptors[0], answer.get("step"), without)
            restored.connections.append(self._connection)
        except header.Damaged as error:
            self._ask({"type": "loaded_done", "slot": answer.get("slot")}, "done", deadline)
            return dict(answer, source="damaged", reason=str(error)), None
        self._restored.append(restored)
        if restored.is_in_use():
            self._watch(restored)
        self._release_unused(deadline)
        return answer, restored

    def _watch(self, restored):
        """Has its slot released when it is not used any more, or it is one of a process that never saves."""
        unused = _unused()
        if unused is not None:
            # Else the next save sees it.
            restored.on_unused = functools.partial(unused.put, (self, restored))
        if self.identity.role == "reader":
            background.start_later(_READER_PAUSE, self.detach)

    def detach(self):
        """Begins to give all tensors of loaded states memory of their own, so that their slots can be used again.

        In the background. Called when training is under way: what was copied elsewhere is gone by then.
        """
        is_running = self._detacher is not None and self._detacher.is_alive()
        if not self._restored or is_running or self._process != os.getpid():
            return
        restored = list(self._restored)

        def detach():
            for each in restored:
                each.detach()
            try:
                for each in restored:
                    self._release(each, time.monotonic() + self.timeout)
            except FlashCheckpointError:
                # It is tried again by what uses the connection next.
                pass

        self._detacher = background.start(detach, (), "flash-checkpoint-detach")

    def wait(self, step, seconds):
        """Waits for a step, or the newest that is to go to disk. Returns the answer."""
        self.connect()
        request = {"type": "wait", "step": step, "timeout_s": seconds}
        # The saver answers in time by itself.
        return self._ask(request, "waited", time.monotonic() + seconds + _WAIT_GRACE)[0]

    def status(self):
        """What the saver holds and does."""
        self.connect()
        return self._ask({"type": "status"}, "status", time.monotonic() + self.timeout)[0]

    def close(self):
        """Ends the connection. What is in memory stays there."""
        if self._connection is not None and self._process == os.getpid():
            self._connection.close()

    def is_gone(self, error):
        """Whether there is no saver any more, after `error`: only then may this process write to disk itself.

        A saver that lives may have a step on its way to disk, which would then count instead of a newer one.
        """
        if isinstance(error, SaverLost) and not error.timed_out:
            # A connection breaks for other reasons, too. The launcher closes a new one when there is no saver.
            self._not_before, epoch = 0.0, self.epoch
            try:
                self.connect()
                # Another one has taken its place.
                return epoch not in (0, self.epoch)
            except (NoSaver, SaverLost, SaverRefused) as found:
                error = found
        return isinstance(error, NoSaver)

    def lose(self, error):
        """Gives the connection up for a while. Returns the error of calls until then."""
        if error is self._failure:
            # It was raised by a call in that while.
            return error
        self.close()
        self._slots, self._layout = {}, None
        self._not_before = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        if isinstance(error, SaverRefused) and error.code in _ALONE:
            error = NoSaver("lost", str(error))
        self._failure = error
        return error

    def _hello(self, address, deadline):
        self._slots, self._layout = {}, None
        identity = self.identity
        hello = {"type": "hello", "v": PROTOCOL}
        for name in _SAID.split():
            hello[name] = getattr(identity, name)
        while True:
            self._connection = Connection(address, deadline)
            try:
                self.welcome, descriptors = self._connection.request(hello, "welcome", deadline)
                _close(descriptors)
                break
            except SaverRefused as error:
                self._connection.close()
                if error.code not in _NOT_YET or time.monotonic() + 0.2 > deadline:
                    raise
                # The process before this one is reaped in a moment; there is nothing to wait for but time.
                time.sleep(0.1)
        epoch = self.welcome.get("epoch")
        self.epoch = epoch if isinstance(epoch, int) and 0 <= epoch < 1 << 64 else 0

    def _alloc(self, layout, deadline):
        """Gets slots for this layout. True when they are new."""
        if self._layout is layout and self._slots:
            return False
        self._drop_slots(deadline)
        request = {"type": "alloc", "bytes": layout.slot_bytes, "layout_id": layout.id}
        answer, descriptors = self._ask(request, "allocated", deadline)
        try:
            offers = [(offer["id"], offer["bytes"]) for offer in answer["slots"]]
            if not offers or len(offers) != len(descriptors):
                raise ValueError("%d slots with %d file descriptors" % (len(offers), len(descriptors)))
            slots = {}
            for number, size in offers:
                if not isinstance(size, int) or size < layout.slot_bytes:
                    raise ValueError("a slot of %r bytes; expected %d" % (size, layout.slot_bytes))
                slots[number] = Slot(number, size, descriptors.pop(0))
        except (KeyError, TypeError, ValueError, OSError) as error:
            _close(descriptors)
            raise self._broken("its slots cannot be used: %s" % error)
        self._slots, self._layout = slots, layout
        return True

    def _drop_slots(self, deadline):
        """Unmaps slots of another layout: the memory of files that the saver closes is free only then.

        What is in them stays: the saver has the files.
        """
        self._slots, self._layout = {}, None
        self._stop_filling.set()
        for filler in self._fillers:
            # It ends with the slot that it is at.
            filler.join(max(deadline - time.monotonic(), 0))
        self._fillers, self._stop_filling = [], threading.Event()

    def _detach_now(self, number):
        for restored in list(self._restored):
            if restored.slot == number:
                restored.detach()

    def _release_unused(self, deadline):
        for restored in list(self._restored):
            if not restored.is_in_use():
                self._release(restored, deadline)

    def _release(self, restored, deadline):
        """Tells the saver that a slot is not read any more, when the last state that was read from it goes."""
        with _releasing:
            if restored not in self._restored:
                # Another thread has just done it.
                return
            self._restored.remove(restored)
            heir = next((other for other in self._restored if other.slot == restored.slot), None)
            if heir is not None:
                heir.connections += restored.connections
                return
        while restored.connections:
            # That of another object may be gone: the saver then knows it by the process.
            connection = restored.connections[-1]
            connection = self._connection if connection.closed else connection
            # Without one, it is released with the round.
            if connection is not None:
                try:
                    connection.request({"type": "loaded_done", "slot": restored.slot}, "done", deadline)
                except SaverRefused:
                    # It was released with the round, or with another load of the same connection.
                    pass
                except FlashCheckpointError:
                    # To be tried again.
                    self._restored.append(restored)
                    raise
            restored.connections.pop()

    def _slots_to_fill(self, all_of_them):
        slots = list(self._slots.values())
        self._is_filled = all_of_them or len(slots) <= _FILLED
        return slots if all_of_them else slots[:_FILLED]

    def _abort(self, slot):
        try:
            self._ask({"type": "abort", "slot": slot.number}, "done", time.monotonic() + 10.0)
        except FlashCheckpointError:
            # The slot is marked as not whole, and is found so.
            self.close()

    def _ask(self, request, reply, deadline):
        return self._connection.request(request, reply, deadline)

    def _broken(self, text):
        self._connection.close()
        return SaverLost("the saver cannot be used: " + text)

    def _forget_parent(self):
        # Mappings of the parent are not here, and its connection was closed: see `connection`.
        self._process = os.getpid()
        self._connection = None
        self._slots, self._layout, self._detacher, self._fillers = {}, None, None, []
        self._restored = _restored.setdefault((self.identity.dir, self.identity.shard), [])
        self._not_before, self._pause = 0.0, _FIRST_PAUSE


def _unused():
    """The queue of what is to be released, with a thread that does it; None when there cannot be one."""
    global _unused_queue
    if _unused_queue is None:
        # One that a finalizer may put into: they run in the middle of anything.
        unused = queue.SimpleQueue()
        if background.start(_release_all, (unused,), "flash-checkpoint-release"):
            _unused_queue = unused
    return _unused_queue


def _release_all(unused):
    while True:
        saver, restored = unused.get()
        try:
            saver._release(restored, time.monotonic() + saver.timeout)
        except UnderWay:
            # Another thread waits for the disk, perhaps for long.
            background.start_later(_RELEASE_PAUSE, unused.put, ((saver, restored),))
        except FlashCheckpointError:
            # Said by what uses the connection next, which releases it too.
            pass
        # A tensor keeps its mapping; nothing here must keep more.
        del saver, restored


def _detach_all():
    # A child would see later saves in pages that are not its own; those of the parent it has as they are now.
    for restored in [each for shard in list(_restored.values()) for each in list(shard)]:
        restored.detach()


def _forget_restored():
    # Their connections are closed here, and the pins are the parent's.
    global _releasing, _unused_queue
    _restored.clear()
    _releasing, _unused_queue = threading.RLock(), None


os.register_at_fork(before=_detach_all, after_in_child=_forget_restored)


def _fill(slots, layout, device, stop):
    """Does what the first save into each slot would have to do, until `stop` is set or the interpreter ends."""

    def is_over():
        return stop.is_set() or background.is_ending()

    length = layout.data_off + layout.data_len
    with background.before_end() as is_allowed:
        for slot in slots if is_allowed else ():
            for end in range(_FILLED_AT_ONCE, length + _FILLED_AT_ONCE, _FILLED_AT_ONCE):
                if is_over():
                    return
                slot.populate(min(end, length))
            if layout.copies and not is_over():
                slot.targets(layout)
            if device is not None and not is_over():
                accelerator.register(slot.mapping, device)


def _close(descriptors):
    for descriptor in descriptors:
        try:
            os.close(descriptor)
        except OSError:
            pass
