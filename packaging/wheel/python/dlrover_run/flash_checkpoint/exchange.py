"""All ranks decide together, through the store that torch.distributed has: once for a layout or a load.

Not by collectives: those need a backend that takes objects, cannot be bounded in time, and must not overlap with those
of training.
"""

import collections
import datetime
import pickle
import re
import sys
import time
import zlib

from .errors import FlashCheckpointError, NothingLoads, RankAbsent
from .notices import say
from .saver import LOAD_TIMEOUT

# Bytes of a value at most: stores refuse large ones.
_LARGEST_PART = 4 << 20

# Seconds after which a rank says that it waits.
_LONG = 60.0

# Seconds between looks at a store that cannot be waited for again after a timeout; doubled each time, up to the second.
_FIRST_POLL, _LONGEST_POLL = 0.01, 1.0

# Ranks that a message names at most.
_MOST_NAMED = 8

# How many exchanges of a name there were in this process, by name and rank.
_counts = {}

# How long ranks wait for each other, and what that is called.
Limit = collections.namedtuple("Limit", "seconds name")

# A load ends when the saver has looked for a checkpoint, and has checked its files.
OF_LOAD = Limit(LOAD_TIMEOUT, "the limit of a load")

# Seconds that ranks may begin a load after each other. Ranks start together, and init_process_group() has just waited
# for all of them: what one of them does longer before it loads is rare, and a script that loads on one rank only, as
# is right before init_process_group(), must not hang for as long as a load may take.
_LATEST_ARRIVAL = 300.0


class Exchange:
    """`name` is the same in all ranks, and no other one has it. `timeout`: seconds that ranks wait for each other."""

    def __init__(self, name, place, timeout):
        self._place = place
        self._timeout = float(timeout)
        # torchrun has no rounds, and its store keeps the keys of the workers before a restart (docs/measured.md): what
        # those were in the middle of must not be taken for an answer. On one node the restart count tells them apart;
        # on several, each node counts its own restarts, so that ranks of different nodes would not meet.
        generation = place.round
        if generation is None and place.world == place.local_world:
            generation = "attempt %d" % place.restarts
        self._name = "dlrover_flash/%s/%s" % (generation, name)
        # How many alarms this rank has heard.
        self._alarms = 0

    def arrive(self, what):
        """Tells all ranks, and waits for none, that this one comes to `together(what)`. Returns `arrived` for that."""
        name = "%s/%s" % (self._name, what)
        count = _counts.get((name, self._place.rank), 0) + 1
        _store().set(_arrival_key("%s/%d" % (name, count), self._place.rank), "1")
        return time.monotonic() + _LATEST_ARRIVAL

    def together(self, what, mine, decide, limit=None, arrived=None):
        """Every rank gives an object; rank 0 calls `decide(objects)`, which returns one answer for each rank.

        Returns the answer for this rank. `what` says what is decided, with the step if there is one: a rank that was
        not there at one step is found again at the next. Raises FlashCheckpointError, in all ranks, when `decide`
        raises or a rank does not come in time; `limit` is a Limit, if not the usual one. With `arrived`, what `arrive`
        has returned, that limit is for ranks that arrive in time; others are named.
        """
        rank, world = self._place.rank, self._place.world
        if world == 1:
            return decide([mine])[0]
        name = "%s/%s" % (self._name, what)
        channel = _Channel("%s/%d" % (name, self._count(name)), limit or Limit(self._timeout, "save_timeout"))
        if rank != 0:
            channel.put("to", rank, mine)
            if arrived is not None:
                channel.wait_for_arrival([0], arrived)
            kind, answer = channel.take("from", rank)
            if kind == "nothing":
                raise NothingLoads(answer)
            if kind == "error":
                raise FlashCheckpointError(answer)
            return answer
        try:
            if arrived is not None:
                channel.wait_for_arrival(range(1, world), arrived)
            objects = [mine] + [channel.take("to", other) for other in range(1, world)]
            answers = decide(objects)
        except Exception as error:
            text = str(error) or type(error).__name__
            kind = "nothing" if isinstance(error, NothingLoads) else "error"
            for other in range(1, world):
                channel.put("from", other, (kind, "rank 0 could not decide for all ranks: " + text))
            raise
        for other in range(1, world):
            channel.put("from", other, ("answer", answers[other]))
        return answers[0]

    def alarm(self):
        """Tells all ranks, and waits for none: `alarmed` holds once in each of them, at the same call in all."""
        _store().add(self._alarm_key(), 1)

    def alarmed(self, what):
        """Whether there was an alarm before the first rank came to `what`, and after the last one that was heard.

        All ranks ask at the same steps and get the same answer, in whatever order they come: one that is late at the
        step whose failure is the alarm does not hear it before the others. Waits for no other rank.
        """
        store, name = _store(), "%s/alarmed/%s" % (self._name, what)
        key = "%s/%d" % (name, self._count(name))
        # The first one decides.
        alarms = int(store.compare_set(key, "", str(store.add(self._alarm_key(), 0))))
        if store.add(key + "/asked", 1) == self._place.world:
            store.delete_key(key)
            store.delete_key(key + "/asked")
        is_new, self._alarms = alarms > self._alarms, max(alarms, self._alarms)
        return is_new

    def _count(self, name):
        """The number of this use of a name; the same in all ranks, as all of them use it."""
        own = name, self._place.rank
        _counts[own] = _counts.get(own, 0) + 1
        return _counts[own]

    def _alarm_key(self):
        return "%s/alarms" % self._name


def _arrival_key(name, rank):
    return "%s/here/%d" % (name, rank)


def _counted(ranks):
    """`rank 1`; `ranks 1, 2`; of many the first ones."""
    named = ", ".join(map(str, ranks[:_MOST_NAMED]))
    if len(ranks) > _MOST_NAMED:
        named += " and %d more" % (len(ranks) - _MOST_NAMED)
    return ("rank %s" if len(ranks) == 1 else "ranks %s") % named


def _wait_for(store, key, deadline, rank):
    """Waits for what `rank` sets. Raises an error with `timeout` in its text at the deadline."""
    left = max(deadline - time.monotonic(), 0.001)
    can_cancel = _can_cancel_waits()
    if left > _LONG and (can_cancel or hasattr(store, "check")):
        # A rank that never comes holds this one for long: nothing else says so.
        try:
            _wait_once(store, key, _LONG, can_cancel)
            return
        except Exception as error:
            if "timeout" not in str(error).lower():
                raise
        say(
            "waiting for rank %d (up to %.0f s): all ranks must save and load checkpoints at the same steps"
            % (rank, left)
        )
        left = max(deadline - time.monotonic(), 0.001)
    _wait_once(store, key, left, can_cancel)


def _wait_once(store, key, seconds, can_cancel):
    if can_cancel or not hasattr(store, "check"):
        store.wait([key], datetime.timedelta(seconds=seconds))
        return
    deadline, pause = time.monotonic() + seconds, _FIRST_POLL
    while not store.check([key]):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timeout of %.3f s" % seconds)
        time.sleep(min(pause, left))
        pause = min(pause * 2, _LONGEST_POLL)


def _can_cancel_waits():
    """Whether a wait for the store that ends by a timeout leaves the connection usable.

    Before torch 2.1 the client does not cancel it: the answer, when it comes, is taken for that of a later request.
    """
    import torch

    found = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    return found is None or (int(found.group(1)), int(found.group(2))) >= (2, 1)


def is_possible(world):
    """Whether all ranks can be asked: torch.distributed is initialized, with all `world` of them."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    try:
        is_there = distributed.is_available() and distributed.is_initialized()
        return bool(is_there and distributed.get_world_size() == world)
    except Exception:
        # Not built with it, or not there.
        return False


class _Channel:
    """Objects from one rank to another."""

    def __init__(self, name, limit):
        self._name = name
        self._store = _store()
        self._deadline = time.monotonic() + limit.seconds
        self._limit = limit

    def wait_for_arrival(self, ranks, deadline):
        """Waits until these ranks have arrived. Raises RankAbsent, which names those that have not."""
        for rank in ranks:
            try:
                _wait_for(self._store, _arrival_key(self._name, rank), deadline, rank)
            except Exception as error:
                if "timeout" not in str(error).lower():
                    raise FlashCheckpointError(
                        "rank %d cannot be waited for: the store of torch.distributed failed: %s"
                        % (rank, str(error).split("\n")[0])
                    )
                missing = [other for other in ranks if other >= rank and not self._has_arrived(other, rank)]
                if not missing:
                    # The store was slow: the time was over before the wait.
                    return
                raise RankAbsent(
                    "%s did not call load_checkpoint() within %.0f s of this one: after init_process_group() all ranks "
                    "call it, so that all load the same step. Call it on all ranks, or, to load on some of them only, "
                    "give it resume_path, or call it before init_process_group()"
                    % (_counted(missing), _LATEST_ARRIVAL)
                )

    def _has_arrived(self, rank, missing):
        # Where a store cannot be looked at, only the one that was waited for is known.
        if not hasattr(self._store, "check"):
            return rank != missing
        return self._store.check([_arrival_key(self._name, rank)])

    def put(self, direction, rank, value):
        content = zlib.compress(pickle.dumps(value), 1)
        parts = [content[at : at + _LARGEST_PART] for at in range(0, len(content), _LARGEST_PART)]
        key = self._key(direction, rank)
        for index, part in enumerate(parts):
            self._store.set("%s/%d" % (key, index), part)
        # Last: the reader then finds the rest.
        self._store.set(key, str(len(parts)))

    def take(self, direction, rank):
        key = self._key(direction, rank)
        try:
            self._wait(key, direction, rank)
        except Exception as error:
            what = "rank %d did not take part in" % rank if direction == "to" else "rank 0 sent no decision for"
            if "timeout" not in str(error).lower():
                raise FlashCheckpointError(
                    "%s the checkpoint: the store of torch.distributed failed: %s" % (what, str(error).split("\n")[0])
                )
            raise RankAbsent(
                "%s the checkpoint within %.0f s (%s): every rank must save and load at the same steps"
                % (what, self._limit.seconds, self._limit.name)
            )
        keys = ["%s/%d" % (key, index) for index in range(int(self._store.get(key)))]
        content = b"".join(self._store.get(part) for part in keys)
        for part in keys + [key]:
            self._store.delete_key(part)
        return pickle.loads(zlib.decompress(content))

    def _wait(self, key, direction, rank):
        _wait_for(self._store, key, self._deadline, rank if direction == "to" else 0)

    def _key(self, direction, rank):
        return "%s/%s/%d" % (self._name, direction, rank)


def _store():
    import torch.distributed as distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        raise FlashCheckpointError(
            "WORLD_SIZE is above 1, but torch.distributed is not initialized: call init_process_group() before sharded "
            "checkpoints are saved or loaded"
        )
    return distributed.distributed_c10d._get_default_store()
