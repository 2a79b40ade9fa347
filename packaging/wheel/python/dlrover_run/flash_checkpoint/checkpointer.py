"""What all checkpointers have in common: a save into memory, and what happens without a saver."""

import contextlib
import operator
import sys
import time

from .. import busy
from . import accelerator, background, common_step, disk, documents, exchange, limits, synchronous
from .call_lock import CallLock
from .errors import (
    FlashCheckpointError,
    Nested,
    NoSaver,
    NothingIsThere,
    NothingLoads,
    SaverLost,
    SaverRefused,
    TooLarge,
    UnderWay,
)
from .exchange import Exchange
from .identity import absolute
from .layout import Layout
from .notices import say, say_once
from .result import LastLoad, StorageType, not_saved, saved
from .saver import LOAD_TIMEOUT, Saver
from .slot import meta_bytes
from .tree import flatten

__all__ = ["Checkpointer", "StorageType"]


# What the saver accepts.
_MOST_REPLICAS = 16


class Checkpointer:
    """Saves states of this process into the memory of its node, and loads them.

    `save_timeout`: seconds that any call waits for the saver at most. `on_error`: "warn" prints why a save failed, and
    training goes on; "raise" raises FlashCheckpointError. `replica_count`: so many other nodes keep a
    copy of each step in memory, for the loss of this one; a state that is the same on all nodes (DDP) has its copies
    anyway. `comm_backend` is accepted for the sake of programs for DLRover. `last_load` is where the last load came from.
    """

    # Whether tensors keep their strides: files of some formats have none.
    _keeps_strides = True

    # Keys of a state in memory that a load does not read.
    _without = ()

    def __init__(self, identity, place, save_timeout=600, replica_count=0, comm_backend="", on_error="warn"):
        if on_error not in ("warn", "raise"):
            raise ValueError("on_error is %r; expected 'warn' or 'raise'" % (on_error,))
        if not float(save_timeout) > 0:
            raise ValueError("save_timeout is %r; expected seconds above 0" % (save_timeout,))
        identity = identity._replace(replicas=_replicas(replica_count, identity))
        self.checkpoint_dir = identity.dir
        self.last_load = LastLoad("none", None, "nothing has been loaded yet")
        self._identity = identity
        self._place = place
        self._save_timeout = float(save_timeout)
        self._on_error = on_error
        self._saver = Saver(identity, save_timeout)
        # With the ranks that have other parts of the state.
        self._exchange = Exchange("%s in %s" % (identity.format, identity.dir), place, save_timeout)
        # Saves and loads, each from its begin to its end.
        self._calls = CallLock()
        self._layout = None
        self._preparation = None
        # The newest step that the saver is to write to disk.
        self._queued = None

    def prepare(self, state_dict):
        """Gets memory for states like this one, in the background, so that the first save is as fast as the others."""
        if self._identity.role != "writer":
            return
        try:
            self._join_preparation()
            flat, layout = self._placed(None, state_dict)
            device = accelerator.device_of(flat.tensors)
        except Exception:
            # The first save meets it too, and says it.
            return

        def prepare():
            try:
                self._saver.prepare(layout, device)
            except Exception:
                # As above.
                pass

        self._preparation = background.start(prepare, (), "flash-checkpoint-prepare")

    def wait_latest_checkpoint(self, timeout=1800):
        """Waits until the newest step that is to go to disk is there: for `timeout` seconds at most.

        True when it is, or none was asked for. Else says why not.
        """
        try:
            self._join_preparation()
            with busy("checkpoint"):
                answer = self._saver.wait(None, float(timeout))
        except FlashCheckpointError as error:
            if isinstance(error, SaverLost):
                self._saver.lose(error)
            if self._queued is None and self._saver.is_gone(error):
                # What was saved was written before the save returned.
                return True
            say("it is not known whether the newest checkpoint is on disk: %s" % error)
            return False
        state, step = answer.get("state"), answer.get("step")
        if state == "on_disk" or step is None:
            return True
        reason = {
            "timeout": "it was not written within %s s; wait with a longer timeout" % timeout,
            "superseded": "it was superseded by a newer save before it was written",
        }.get(state, answer.get("error") or "the saver answered %r" % state)
        say("step %s is not on disk: %s" % (step, reason))
        return False

    def close(self):
        """Ends the connection to the saver. What is in memory stays there, and goes to disk as asked for."""
        self._saver.close()

    # What subclasses use.

    def _save(self, step, state, path, storage_type):
        """Saves a state of dicts and tensors."""
        began = time.perf_counter()
        step, to_disk = _checked(step, storage_type)
        if path:
            path = absolute(path)
        if self._identity.role != "writer":
            # Another process of this node saves the same state. What this one loaded is no longer needed as it was.
            self._saver.detach()
            return saved(step, time.perf_counter() - began)
        try:
            with self._calls.held("save", time.monotonic() + self._save_timeout):
                return self._save_now(step, state, path, to_disk, began)
        except UnderWay as error:
            return self._not_saved(error, "under way", step, str(error), began)

    def _save_now(self, step, state, path, to_disk, began):
        try:
            self._join_preparation()
            flat, layout = self._placed(step, state)
            superseded = self._saver.save(layout, flat, step, self._wish(path, to_disk))
            if to_disk and self._identity.writes_disk:
                self._queued = step
            return saved(step, time.perf_counter() - began, superseded)
        except Exception as error:
            return self._failed(error, step, state, path, to_disk, began)

    def _wish(self, path, to_disk):
        return {
            "storage": "disk" if to_disk else "memory",
            "path": path or "",
            "writes_disk": self._identity.writes_disk,
        }

    def _failed(self, error, step, state, path, to_disk, began):
        """What a save does that could not go into memory."""
        key, text = _described(error)
        if isinstance(error, SaverLost):
            self._saver.lose(error)
        self._after_failure(error)
        if to_disk and self._may_write_alone(error):
            return self._save_alone(error, text, key, step, state, path, began)
        if isinstance(error, NoSaver) and not to_disk:
            text += "; checkpoints in memory are not kept, only saves with StorageType.DISK are written"
        return self._not_saved(error, key, step, text, began)

    def _after_failure(self, error):
        """What subclasses do when a save could not go into memory."""

    def _may_write_alone(self, error):
        """Whether this process writes to disk itself after this error."""
        return self._has_no_memory(error)

    def _has_no_memory(self, error):
        """Whether there is no saver any more that could take the state, after this error."""
        if isinstance(error, TooLarge) or isinstance(error, SaverRefused) and error.code == "no_memory":
            return True
        return self._saver.is_gone(error)

    def _not_saved(self, error, key, step, text, began):
        text = "step %d is not saved: %s" % (step, text)
        if self._on_error == "raise":
            if isinstance(error, FlashCheckpointError):
                raise error
            raise FlashCheckpointError(text) from error
        self._say_once(key, text, error)
        return not_saved(step, time.perf_counter() - began, text)

    def _save_alone(self, error, why, key, step, state, path, began):
        """Writes to disk without a saver, while training waits."""
        if not self._identity.writes_disk:
            # Another node writes the same state.
            return saved(step, time.perf_counter() - began)
        text = "%s; checkpoints are written to disk by the training process, which blocks training" % why
        self._say_once("alone, " + key, text, error)
        try:
            with busy("checkpoint"):
                self._write_alone(step, state, path)
        except Exception as error:
            text = "it could not be written to disk: %s: %s" % (type(error).__name__, error)
            return self._not_saved(error, "disk", step, text, began)
        self._queued = None
        return saved(step, time.perf_counter() - began)

    def _say_once(self, key, text, error):
        # What all ranks agreed on, one says.
        if self._place.rank == 0 or not getattr(error, "is_agreed", False):
            say_once(key, text)

    def _write_alone(self, step, state, path):
        if self._identity.n_shards != 1:
            raise FlashCheckpointError(
                "a state of %d shards needs a saver; start the script with dlrover-run" % self._identity.n_shards
            )
        shard = synchronous.write_file(self._identity, step, state, path)
        synchronous.commit(self._identity, step, [shard])

    def _load(self, resume_path):
        """Loads a state of dicts and tensors. {} only if there is nothing."""
        if resume_path:
            path = absolute(resume_path)
            with busy("checkpoint"):
                state = disk.load_file(path)
            self.last_load = LastLoad("file", None, "%s was given" % path)
            return state
        with busy("checkpoint"), contextlib.ExitStack() as until_end:
            if self._asks_all():
                return self._load_with_all(until_end)
            self._begin_load(until_end)
            return self._load_newest()

    def _begin_load(self, until_end):
        """Waits for what this process does with the saver already. Holds the lock of calls until the end."""
        # Where all ranks load, the others wait for what this one finds, and must hear of a failure in time.
        seconds = LOAD_TIMEOUT / 2 if self._asks_all() else LOAD_TIMEOUT
        until_end.enter_context(self._calls.held("load", time.monotonic() + seconds))
        self._join_preparation()

    def _load_newest(self):
        answer, restored = self._ask_for_load()
        source, step = answer.get("source"), answer.get("step")
        if restored is not None:
            self.last_load = LastLoad("memory", step, answer.get("reason", ""))
            return restored.take_state()
        named = answer.get("named")
        if source == "disk" and self._identity.n_shards > 1:
            # The saver has checked a part of the files, and passes over a step for this rank only.
            return self._load_alone(answer.get("reason", ""), step if named is None else named)
        if source == "disk" and named not in (None, step) and self._place.world > 1:
            raise NothingLoads(
                "all ranks restore step %d from %s, which this node cannot load: %s. Other ranks may load it, so this "
                "worker does not load step %d: repair or remove the files of step %d, or call init_process_group() "
                "before load_checkpoint(), so that all ranks load the newest step that all of them can"
                % (named, self._identity.dir, answer.get("reason") or "no reason is known", step, named)
            )
        if source == "disk":
            return self._load_file(step, answer.get("path"), answer.get("reason", ""))
        if source == "none":
            self.last_load = LastLoad("none", None, answer.get("reason", ""))
            return {}
        return self._load_alone(answer["reason"])

    def _load_file(self, step, path, reason):
        try:
            state = disk.load_file(path)
        except Exception as error:
            raise disk.not_loaded(step, path, error)
        self.last_load = LastLoad("disk", step, reason)
        return state

    def _asks_all(self):
        """Whether all ranks decide what is loaded, because the others can be asked.

        Also when the state is the same on all of them: what one node cannot read must not be loaded by the others.
        """
        return self._place.world > 1 and exchange.is_possible(self._place.world)

    def _load_with_all(self, until_end):
        """Loads what this rank saves and loads, of the step that all ranks load. All ranks call it."""
        restored, path, arrived = None, None, None
        if self._identity.n_shards == 1:
            # Such a state can be loaded by one rank alone, and passed on by the script. Of a state in parts each rank
            # needs its own.
            arrived = self._exchange.arrive("load")
        try:
            self._begin_load(until_end)
            answer, restored = self._ask_for_load()
            source, path = answer.get("source"), answer.get("path")
            # Each has a file of its own.
            mine = "memory" if restored else source, answer.get("step"), None, answer.get("reason") or ""
        except Nested:
            # Not one of the calls that the others make.
            raise
        except NothingIsThere as error:
            mine = "nothing", None, None, "rank %d: %s" % (self._place.rank, error)
        except NothingLoads as error:
            mine = "alone", None, None, "rank %d: %s" % (self._place.rank, error)
        except Exception as error:
            # All ranks must know.
            mine = "error", None, None, "rank %d: %s" % (self._place.rank, error)
        source, step, _, reason = self._exchange.together(
            "load", mine, common_step.same_for_all, exchange.OF_LOAD, arrived
        )
        if source == "memory":
            self.last_load = LastLoad("memory", step, reason)
            return restored.take_state()
        if restored is not None:
            # It is not loaded, and must not hold the slot.
            restored.take_state()
        if source == "disk":
            return self._load_file(step, path, reason)
        if source == "none":
            self.last_load = LastLoad("none", None, reason)
            return {}
        # Parts of a state are read by their ranks only; where each rank reads all of it, all find the same.
        read = disk.load_file if self._identity.n_shards == 1 else None
        candidate, state, last_load = common_step.newest_on_disk(
            self._exchange, self._identity, reason, disk.check_format, read
        )
        if candidate is None:
            self.last_load = last_load
            return {}
        if read is None:
            return self._load_file(candidate.step, candidate.path, reason)
        self.last_load = last_load
        return state

    def _ask_for_load(self):
        """What the saver says where to load from; of source `alone` when this process is to look itself."""
        try:
            answer, restored = self._saver.load(without=self._without)
        except NoSaver as error:
            if error.key == "no address":
                return {"source": "alone", "reason": str(error)}, None
            return self._alone_or_raise("the saver of this node cannot be used: %s" % error), None
        except SaverRefused as error:
            if error.code == "nothing_loads":
                raise NothingLoads(str(error))
            raise
        except SaverLost as error:
            self._saver.lose(error)
            return self._alone_or_raise("the saver of this node was lost: %s" % error), None
        named = answer.get("named")
        if answer.get("source") == "none" and named is not None:
            raise NothingIsThere(
                "all ranks restore step %d from %s, where this node finds no checkpoint: %s. Training does not start "
                "from scratch: mount or restore the directory on this node"
                % (named, self._identity.dir, answer.get("reason") or "no reason is known")
            )
        if answer.get("source") == "damaged":
            text = "step %s in memory is damaged: %s" % (answer.get("step"), answer.get("reason"))
            return self._alone_or_raise(text), None
        return answer, restored

    def _alone_or_raise(self, why):
        if self._asks_all():
            return {"source": "alone", "reason": why}
        # Other ranks may take a newer step from memory, those of this node too: they may have asked the saver before.
        if self._place.world > 1:
            raise FlashCheckpointError(
                "%s. Other ranks may load another step, so this worker must not continue; the job restarts it" % why
            )
        say("%s; loading from disk" % why)
        return {"source": "alone", "reason": why}

    def _load_alone(self, why, at_most=None):
        own = self._identity
        if own.n_shards > 1:
            say_once(
                "check all",
                "torch.distributed is not initialized, so each rank reads and checks the files of all ranks; call "
                "init_process_group() before a checkpoint is loaded",
            )
        state, candidate = disk.load_newest(own.dir, own.rank, own.shard, own.n_shards, at_most)
        if candidate is None:
            self.last_load = LastLoad("none", None, "%s has no checkpoint" % self._identity.dir)
            return {}
        self.last_load = LastLoad("disk", candidate.step, why)
        return state

    def _placed(self, step, state):
        """A state, taken apart, and its layout. `step` is None before the first save."""
        flat = self._flatten(state)
        return flat, self._layout_of(flat, state)

    def _flatten(self, state, with_names=False):
        return flatten(state, _is_storable(), with_names)

    def _layout_of(self, flat, state):
        """The layout of a state: the last one if it fits."""
        needed = meta_bytes(flat)
        if self._layout is None or not self._layout.fits(flat, needed):
            names = self._flatten(state, with_names=True).names
            self._layout = Layout(names, flat.tensors, flat.keys, needed, self._keeps_strides)
        limits.check(flat, needed - flat.odd_bytes + len(self._layout.table))
        return self._layout

    def _join_preparation(self):
        if self._preparation is not None:
            self._preparation.join(self._save_timeout)
            if self._preparation.is_alive():
                raise SaverLost("the saver did not provide memory within %.0f s" % self._save_timeout, timed_out=True)
            self._preparation = None


def _checked(step, storage_type):
    try:
        step = operator.index(step)
    except TypeError:
        raise TypeError("step is %r; expected a whole number" % (step,))
    if not 0 <= step <= documents.LARGEST_STEP:
        raise ValueError("step is %d; expected 0 to %d" % (step, documents.LARGEST_STEP))
    # DLRover's own enum is taken too.
    name = getattr(storage_type, "name", storage_type)
    if name not in ("MEMORY", "DISK"):
        raise ValueError("storage_type is %r; expected StorageType.MEMORY or StorageType.DISK" % (storage_type,))
    return step, name == "DISK"


def _described(error):
    """The kind of an error, which is said once, and its text."""
    if isinstance(error, NoSaver):
        return "no saver: " + error.key, str(error)
    if isinstance(error, SaverRefused):
        return "refused: " + error.code, "the saver rejected the request: %s" % error
    if isinstance(error, FlashCheckpointError):
        return type(error).__name__, str(error)
    return type(error).__name__, "%s: %s" % (type(error).__name__, error)


def _is_storable():
    # Without torch there are no tensors.
    if sys.modules.get("torch") is None:
        return None
    from .dtypes import is_storable

    return is_storable


def _replicas(count, identity):
    if not isinstance(count, int) or not 0 <= count <= _MOST_REPLICAS:
        raise ValueError("replica_count is %r; expected 0 to %d" % (count, _MOST_REPLICAS))
    return 0 if identity.replicated else count
