"""Checkpoints of a state of which each rank has a part, as with FSDP: directories of torch.distributed.checkpoint.

    checkpointer = FsdpShardCheckpointer("/checkpoints/run")
    extra = checkpointer.load_checkpoint(model, optimizer)
    ...
    checkpointer.save_checkpoint(step, model, optimizer, {"step": step}, storage_type=StorageType.MEMORY)

All ranks save and load at the same steps.
"""

import collections
import collections.abc
import contextlib
import functools
import os

from .. import busy
from . import common_step, documents, exchange, identity
from .checkpointer import Checkpointer
from .ddp import DdpCheckpointer
from .errors import FlashCheckpointError, Nested, NoSaver, NothingLoads, RankAbsent, SaverLost, SaverRefused, TooLarge
from .identity import Place, absolute
from .result import LastLoad, StorageType
from .strategies import keep_of

__all__ = ["FsdpCheckpointer", "FsdpFullCheckpointer", "FsdpShardCheckpointer", "StorageType"]

# Plans of states of different shapes that are kept: making one takes all ranks.
_MOST_PLANS = 4

# Seconds that a rank waits for a plan that the others did not take part in at the save before.
_PLAN_AGAIN = 10.0


class FsdpShardCheckpointer(Checkpointer):
    """Each rank saves its part into the memory of its node, and from there into a file of its own."""

    # A directory of torch has tensors without gaps.
    _keeps_strides = False

    # Only for the file.
    _without = ("metadata",)

    def __init__(
        self,
        checkpoint_dir,
        comm_backend="",
        deletion_strategy=None,
        save_timeout=600,
        replica_count=0,
        on_error="warn",
    ):
        place = Place.find()
        who = identity.of_sharded(checkpoint_dir, place, "dcp", keep_of(deletion_strategy))
        super().__init__(who, place, save_timeout, replica_count, comm_backend, on_error)
        # By the key of their parts: a RankPlan, or the NoSaver that all ranks agreed on, until the next save to disk.
        self._plans = collections.OrderedDict()
        # The key that this rank could not plan, because the others did not take part.
        self._unplanned = None

    def save_checkpoint(self, step, model, optimizer=None, extra_sd={}, path="", storage_type=StorageType.DISK):
        """Saves a model and its optimizer, and `extra_sd` beside them. Returns a SaveResult.

        Or, as the guide of DLRover has it: `save_checkpoint(step, state_dict, directory, storage_type=...)` with a
        sharded state dict. `path` is the directory of the step; `<dir>/<step>` if it is empty.
        """
        if isinstance(model, collections.abc.Mapping):
            return self._save(step, model, optimizer or path, storage_type)
        from . import sharded_state

        return self._save(step, sharded_state.state_of(model, optimizer, extra_sd), path, storage_type)

    def load_checkpoint(self, model, optimizer=None, resume_path=""):
        """Loads the newest state into `model` and `optimizer`: from memory, else from disk, also for another world.

        Returns what was saved beside them; {} when there is nothing. `resume_path` is the directory of a step, which is
        loaded then. Raises NothingLoads when there are checkpoints and none loads.
        """
        from . import sharded_state

        reader = self.get_storage_reader(resume_path)
        if reader is None:
            return {}
        with busy("checkpoint"):
            return sharded_state.load_into(model, optimizer, reader)

    def get_storage_reader(self, resume_path=""):
        """A reader of torch.distributed.checkpoint for the newest state; None when there is nothing.

        All ranks get the same step: from memory when every rank has its part there, else from disk.
        """
        from torch.distributed.checkpoint import FileSystemReader

        if resume_path:
            path = absolute(resume_path)
            self.last_load = LastLoad("file", None, "%s was given" % path)
            return FileSystemReader(path)
        with busy("checkpoint"), contextlib.ExitStack() as until_end:
            reader, self.last_load = self._newest(until_end)
        if self.last_load.source == "disk":
            return FileSystemReader(reader)
        return reader

    def _save_now(self, step, state, path, to_disk, began):
        if to_disk:
            self._drop_plans(step)
        return super()._save_now(step, state, path, to_disk, began)

    def _drop_plans(self, step):
        """Forgets plans that all ranks are to make anew, at the same save: whether all have a saver and memory now.

        After an alarm all of them. Those without memory each time: a write by the ranks takes longer than a plan.
        """
        world = self._place.world
        try:
            if world > 1 and exchange.is_possible(world) and self._exchange.alarmed("save %d" % step):
                self._plans.clear()
        except Exception:
            # The store has failed. What needs it says so.
            pass
        for key, plan in list(self._plans.items()):
            if isinstance(plan, NoSaver) and plan.key != "never":
                del self._plans[key]

    def _after_failure(self, error):
        """Without a saver, or memory, a rank cannot save until all ranks write by themselves: they are told."""
        is_known = isinstance(error, NoSaver) and error.is_agreed
        if is_known or self._place.world == 1 or not self._plans or not self._has_no_memory(error):
            return
        try:
            self._exchange.alarm()
        except Exception:
            # As above.
            pass

    def _placed(self, step, state):
        from .dcp_plan import Parts

        parts = Parts(state)
        key = parts.key()
        if key not in self._plans:
            if not parts.by_label:
                raise FlashCheckpointError("the state dict is empty")
            self._plans[key] = self._plan_once_more(step, state, key)
            while len(self._plans) > _MOST_PLANS:
                self._plans.popitem(last=False)
        plan = self._plans[key]
        if isinstance(plan, NoSaver):
            raise plan.with_traceback(None)
        return super()._placed(step, plan.state_of(parts))

    def _plan_once_more(self, step, state, key):
        """`_plan`; a rank that plans alone waits for the others for `save_timeout` once, and for less from then on."""
        limit = None
        if key == self._unplanned and self._save_timeout > _PLAN_AGAIN:
            limit = exchange.Limit(_PLAN_AGAIN, "less than save_timeout, after the save before")
        try:
            plan = self._plan(step, state, limit)
        except RankAbsent as error:
            if not self._plans:
                # The first one: a rank may be late.
                raise
            self._unplanned = key
            raise RankAbsent(
                "the state of rank %d has other names, types or shapes than before, which needs a new plan of all "
                "ranks, and not all of them took part: %s. Give all ranks the same keys at the same step, with None "
                "where a rank has no value" % (self._place.rank, error)
            )
        self._unplanned = None
        return plan

    def _plan(self, step, state, limit):
        """Decides with all ranks what each of them writes, and whether all have a saver and memory."""
        from . import dcp_plan

        parts = None
        metadata = []

        def describe():
            nonlocal parts
            self._saver.connect()
            parts = dcp_plan.Parts(state, with_offsets=True)
            return dcp_plan.local_description(parts)

        def plan_for_all(descriptions):
            labels, whole = dcp_plan.plan_for_all(parts.planner, descriptions)
            metadata.append(whole)
            return labels

        mine = self._attempt(describe)
        decide = functools.partial(_decided, decide=plan_for_all)
        why, labels = self._exchange.together("plan %s" % step, mine, decide, limit)
        if why:
            return NoSaver(*why, is_agreed=True)
        local = dcp_plan.local_metadata(parts, mine[1]["plan"])
        plan = dcp_plan.RankPlan(self._place.rank, labels, local, metadata[0] if metadata else None)

        def reserve():
            _, layout = super(FsdpShardCheckpointer, self)._placed(step, plan.state_of(parts))
            self._saver.reserve(layout)

        mine = self._attempt(reserve)
        why, _ = self._exchange.together("memory %s" % step, mine, lambda each: _decided(each, list))
        return NoSaver(*why, is_agreed=True) if why else plan

    def _attempt(self, call):
        """(None, what `call` returns), or why this rank has no memory to save into, or ("fault", why not).

        "never": nor will it have any; "now": it may have some later.
        """
        try:
            return None, call()
        except Exception as error:
            if isinstance(error, SaverLost):
                self._saver.lose(error)
            text = "rank %d: %s" % (self._place.rank, error)
            if isinstance(error, TooLarge) or isinstance(error, NoSaver) and error.key == "no address":
                return "never", text
            return "now" if self._has_no_memory(error) else "fault", text

    def _may_write_alone(self, error):
        if self._place.world == 1:
            return super()._may_write_alone(error)
        # The others do not take part otherwise.
        return isinstance(error, NoSaver) and error.is_agreed

    def _write_alone(self, step, state, path):
        from . import sharded_files

        sharded_files.write(self._identity, self._place, self._exchange, step, state, path)

    def _newest(self, until_end):
        """(a reader, LastLoad) for what all ranks load; for source `disk` its directory instead of the reader."""
        reader, mine = self._mine(until_end)
        source, step, path, reason = self._exchange.together("load", mine, common_step.same_for_all, exchange.OF_LOAD)
        if source == "memory":
            return reader, LastLoad("memory", step, reason)
        reader = None
        if source == "none":
            return None, LastLoad("none", None, reason)
        if source == "disk":
            return path, LastLoad("disk", step, reason)
        candidate, _, last_load = common_step.newest_on_disk(self._exchange, self._identity, reason, _check_format)
        return candidate and candidate.path, last_load

    def _mine(self, until_end):
        """(a reader or None, what this rank could load)."""
        try:
            self._begin_load(until_end)
            answer, restored = self._ask_for_load()
            reader = None
            if restored is not None:
                from .dcp_reader import MemoryReader

                reader = MemoryReader(restored.take_state(), answer.get("step"))
            source = "memory" if reader else answer.get("source")
            return reader, (source, answer.get("step"), answer.get("path"), answer.get("reason") or "")
        except Nested:
            # Not one of the calls that the others make.
            raise
        except Exception as error:
            # All ranks must know.
            kind = "nothing" if isinstance(error, NothingLoads) else "error"
            return None, (kind, None, None, "rank %d: %s" % (self._place.rank, error))

    def _alone_or_raise(self, why):
        # All ranks decide.
        return {"source": "alone", "reason": why}


class FsdpFullCheckpointer(DdpCheckpointer):
    """Saves the whole state of a sharded model, as rank 0 gathers it: a `.pt` file, as with DdpCheckpointer.

    Every save gathers all of the model, which takes long: FsdpShardCheckpointer does not.
    """

    def __init__(
        self,
        checkpoint_dir,
        comm_backend="",
        deletion_strategy=None,
        save_timeout=600,
        replica_count=0,
        on_error="warn",
    ):
        super().__init__(checkpoint_dir, 1, 1, comm_backend, deletion_strategy, save_timeout, replica_count, on_error)

    def save_checkpoint(self, step, model, optimizer=None, extra_sd={}, path="", storage_type=StorageType.DISK):
        """Saves a model and its optimizer, and `extra_sd` beside them. Returns a SaveResult. All ranks call it."""
        from . import full_state

        return self._save(step, full_state.state_of(model, optimizer, extra_sd), path, storage_type)

    def load_checkpoint(self, model, optimizer=None, resume_path=""):
        """Loads the newest state into `model` and `optimizer`. Returns what was saved beside them; {} without any."""
        from . import full_state

        state = self._load(resume_path)
        return full_state.load_into(model, optimizer, state) if state else {}


def _decided(attempts, decide):
    """(why all ranks write alone or None, a result) for each rank: (kind, text). Raises when a rank has a fault."""
    for kind, text in attempts:
        if kind == "fault":
            raise FlashCheckpointError(text)
    for why in ("never", "now"):
        for kind, text in attempts:
            if kind == why:
                return [((kind, text), None)] * len(attempts)
    return [(None, result) for result in decide([result for _, result in attempts])]


def _check_format(candidate):
    if candidate.manifest is None or candidate.manifest["format"] != "dcp":
        raise documents.Unusable("it is not a directory of torch.distributed.checkpoint with a manifest")
    names = [os.path.basename(summed["file"]) for _, summed in documents.files_of(candidate.manifest)]
    if ".metadata" not in names:
        raise documents.Unusable("its manifest has no .metadata")


# The name that it had first.
FsdpCheckpointer = FsdpShardCheckpointer
