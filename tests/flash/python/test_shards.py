"""States with a part for each rank, in a `.pt` file each: all ranks load the same step, whatever is damaged."""

import json
import os
import shutil
import threading
import time
import unittest

from support import ClientTest, crashes, needs_torch, torch
from test_fsdp import ranks

from dlrover_run.flash_checkpoint import (
    DdpCheckpointer,
    FlashCheckpointError,
    NothingLoads,
    disk,
    identity,
    synchronous,
)
from dlrover_run.flash_checkpoint.errors import RankAbsent
from dlrover_run.flash_checkpoint.files import RankCheckpointer

WORLD = 2


class ShardsTest(ClientTest):
    def path(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, *steps, paths=("", "")):
        """What all ranks would write without a saver."""
        for step in steps:
            shards = []
            for rank in range(WORLD):
                place = identity.Place(rank, WORLD, rank, 0, WORLD, "", None, 0)
                own = identity.of_sharded(self.folder, place, "pt", None)
                state = {"step": step, "rank": rank, "bytes": b"x" * 1000}
                path = paths[rank] and self.path(paths[rank])
                shards.append(synchronous.write_file(own, step, state, path))
            synchronous.commit(own, step, shards)

    def damage(self, *names):
        with open(self.path(*names), "r+b") as file:
            file.seek(500)
            byte = file.read(1)
            file.seek(500)
            file.write(bytes([byte[0] ^ 1]))

    def be_rank(self, rank):
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_WORLD_SIZE=str(WORLD))

    def loaded(self, out):
        """What each rank has loaded."""
        found = []
        for rank in range(WORLD):
            with open(os.path.join(out, str(rank))) as file:
                found.append(json.load(file))
        return found


class OneByOne(ShardsTest):
    """Ranks that cannot ask each other."""

    def load(self, rank):
        self.be_rank(rank)
        checkpointer = RankCheckpointer(self.folder)
        state = checkpointer.load_checkpoint()
        self.assertEqual(state.get("rank"), rank)
        return state["step"]

    def test_a_changed_byte_in_the_file_of_one_rank_is_found_by_all(self):
        self.write(10, 20, 30)
        self.damage("30", "rank_1.pt")
        self.assertEqual([self.load(rank) for rank in range(WORLD)], [20, 20])
        self.assertSaid("torch.distributed is not initialized, so each rank reads and checks the files of all ranks")
        self.damage("20", "rank_0.pt")
        self.assertEqual([self.load(rank) for rank in range(WORLD)], [10, 10])
        os.unlink(self.path("10", "rank_0.pt"))
        for rank in range(WORLD):
            with self.assertRaises(NothingLoads):
                self.load(rank)

    def test_a_kill_at_any_moment_leaves_a_step_of_all_ranks(self):
        found = set()
        names = ["last-0.pt", "last-1.pt"]
        self.write(10, paths=names)
        for number in crashes(lambda: self.write(20, paths=names)):
            first, second = (self.load(rank) for rank in range(WORLD))
            self.assertEqual(first, second, number)
            found.add(first)
            shutil.rmtree(self.folder)
            self.write(10, paths=names)
        self.assertEqual(found, {10, 20})
        self.assertEqual([self.load(rank) for rank in range(WORLD)], [20, 20])
        self.assertEqual(sorted(os.listdir(self.folder)), [".dlrover", "dlrover_latest.txt"] + names)

    def test_what_one_rank_cannot_read_is_no_reason_for_an_older_step(self):
        self.write(10, 20)
        os.unlink(self.path("20", "rank_1.pt"))
        # As a file server that does not answer this host.
        os.symlink("rank_1.pt", self.path("20", "rank_1.pt"))
        with self.assertRaisesRegex(FlashCheckpointError, "step 20: .*Other ranks may be able to read it"):
            self.load(0)

    def test_ranks_that_a_saver_answers_differently_load_the_same(self):
        saver = self.reference()
        self.write(10, 20)
        self.damage("20", "rank_1.pt")
        found = []
        # Each saver checks a part of the files, and has looked at an older step for rank 1 only.
        for rank, step in [(0, 20), (1, 10)]:
            path = self.path(str(step), "rank_%d.pt" % rank)
            saver.load_answer = {"source": "disk", "path": path, "step": step, "reason": "it says so"}
            found.append(self.load(rank))
        self.assertEqual(found, [10, 10])

    def test_what_the_saver_says_comes_before_the_tracker(self):
        self.write(10, 20, 30)
        folder = disk.Folder(self.folder)
        self.assertEqual([each.step for each in folder.candidates(0, 0, WORLD, at_most=20)], [20, 10])
        with open(self.path("dlrover_latest.txt"), "w") as file:
            file.write("10")
        folder = disk.Folder(self.folder)
        self.assertEqual([each.step for each in folder.candidates(0, 0, WORLD, at_most=20)], [20, 10])
        self.assertEqual([each.step for each in folder.candidates(0, 0, WORLD)], [10])


class TogetherTest(ShardsTest):
    """Ranks with torch.distributed."""

    KIND = "rank"

    def load(self, *actions, **variables):
        out = self.path("out")
        os.makedirs(out, exist_ok=True)
        _, ends = ranks("shards.py", self.KIND, self.folder, out, "group", *(actions + ("load",)), **variables)
        for code, _, error in ends:
            self.assertEqual(code, 0, error)
        return self.loaded(out), ends


@needs_torch
class Waits(ShardsTest):
    """Ranks of one process, with a store that they share."""

    def setUp(self):
        super().setUp()
        import torch.distributed as dist

        from dlrover_run.flash_checkpoint import exchange

        store = dist.TCPStore("127.0.0.1", 0, 1, True)
        self.exchange = exchange
        self.instead(exchange, "_store", lambda: store)
        self.instead(exchange, "_counts", {})

    def instead(self, module, name, value):
        self.addCleanup(setattr, module, name, getattr(module, name))
        setattr(module, name, value)

    def of_rank(self, rank, timeout, restarts=0):
        place = identity.Place(rank, WORLD, rank, 0, WORLD, "", None, restarts)
        return self.exchange.Exchange("name", place, timeout)

    def on_all_ranks(self, call):
        """What `call(rank)` returns or raises, in a thread for each rank with a connection of its own."""
        import torch.distributed as dist

        found, own, first = [None] * WORLD, threading.local(), self.exchange._store()
        self.instead(self.exchange, "_store", lambda: getattr(own, "store", first))

        def run(rank):
            own.store = dist.TCPStore("127.0.0.1", first.port, is_master=False)
            try:
                found[rank] = call(rank)
            except Exception as error:
                found[rank] = error

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(WORLD)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return found

    def checkpointers(self, kind, **options):
        self.instead(self.exchange, "is_possible", lambda world: True)
        result = []
        for rank in range(WORLD):
            self.be_rank(rank)
            result.append(kind(self.folder, **options))
        return result

    def assertAbsent(self, of_rank, text, *arguments, **options):
        with self.assertRaisesRegex(RankAbsent, text):
            of_rank.together("load", None, list, *arguments, **options)

    def test_a_rank_that_waits_for_long_says_for_which(self):
        self.instead(self.exchange, "_LONG", 0.1)
        for rank, other in ((0, 1), (1, 0)):
            self.assertAbsent(self.of_rank(rank, 0.3, restarts=rank), "within 0 s")
            self.assertSaid("waiting for rank %d (up to 0 s): all ranks must save and load" % other)

    def test_nodes_without_rounds_meet_although_they_count_restarts_by_themselves(self):
        def together(rank):
            place = identity.Place(rank, WORLD, 0, rank, 1, "", None, rank)
            return self.exchange.Exchange("name", place, 10).together("load", rank, lambda each: [list(each)] * 2)

        self.assertEqual(self.on_all_ranks(together), [[0, 1]] * 2)

    def test_where_a_timeout_breaks_the_connection_nothing_waits_twice(self):
        class Old:
            """A store of torch before 2.1: after a wait that has ended by a timeout it answers something else."""

            def __init__(self, store):
                self._store = store

            def __getattr__(self, name):
                return getattr(self._store, name)

            def wait(self, keys, timeout):
                raise AssertionError("it was waited for")

        class Older(Old):
            """One that cannot be looked at, either: nothing but one wait remains."""

            def __getattr__(self, name):
                if name == "check":
                    raise AttributeError(name)
                return getattr(self._store, name)

            def wait(self, keys, timeout):
                self.waits += 1
                self._store.wait(keys, timeout)

        self.instead(torch, "__version__", "2.0.1+cu118")
        self.instead(self.exchange, "_LONG", 0.1)
        old, older = Old(self.exchange._store()), Older(self.exchange._store())
        self.instead(self.exchange, "_store", lambda: old)
        self.assertAbsent(self.of_rank(0, 0.3), "rank 1 did not take part")
        self.assertSaid("waiting for rank 1 (up to 0 s)")
        other = threading.Thread(target=lambda: self.of_rank(1, 60).together("save 1", "b", None))
        other.start()
        found = []
        self.of_rank(0, 60).together("save 1", "a", lambda each: found.extend(each) or each)
        other.join(60)
        self.assertEqual(found, ["a", "b"])
        older.waits = 0
        self.instead(self.exchange, "_store", lambda: older)
        self.assertAbsent(self.of_rank(0, 0.3, restarts=1), "rank 1 did not take part")
        self.assertEqual(older.waits, 1)

    def test_ranks_that_do_not_load_are_named_soon(self):
        self.instead(self.exchange, "_LATEST_ARRIVAL", 0.3)
        one, other = self.checkpointers(DdpCheckpointer)
        began = time.monotonic()
        for checkpointer, missing in ((one, 1), (other, 0)):
            self.instead(self.exchange, "_counts", {})
            with self.assertRaisesRegex(
                FlashCheckpointError,
                r"rank %d did not call load_checkpoint\(\) within 0 s of this one: after init_process_group\(\) all "
                r"ranks call it.* give it resume_path, or call it before init_process_group\(\)" % missing,
            ):
                checkpointer._exchange._name += "/%d" % missing
                checkpointer.load_checkpoint()
        self.assertLess(time.monotonic() - began, 120)
        # All of them, and not only the first one.
        for missing, text in (((1, 2, 3), "ranks 1, 2, 3 did"), ((1, 3), "ranks 1, 3 did")):
            ranks = [identity.Place(rank, 4, rank, 0, 4, "", None, 0) for rank in range(4)]
            each = [self.exchange.Exchange(text, place, 0.2) for place in ranks]
            for rank in set((1, 2, 3)) - set(missing):
                each[rank].arrive("load")
            self.assertAbsent(each[0], text, arrived=each[0].arrive("load"))

    def test_a_rank_that_has_arrived_may_take_long(self):
        self.instead(self.exchange, "_LATEST_ARRIVAL", 0.05)
        one, other = self.of_rank(0, 60), self.of_rank(1, 60)
        arrived = [each.arrive("load") for each in (one, other)]

        def together(rank):
            each = (one, other)[rank]
            if rank:
                # It asks its saver.
                time.sleep(0.5)
            return each.together("load", rank, lambda objects: [list(objects)] * 2, None, arrived[rank])

        self.assertEqual(self.on_all_ranks(together), [[0, 1]] * 2)

    def test_a_load_that_cannot_begin_on_one_rank_is_told_to_all(self):
        from dlrover_run.flash_checkpoint import FsdpShardCheckpointer, checkpointer

        self.instead(checkpointer, "LOAD_TIMEOUT", 0.4)
        for kind, load in [
            (DdpCheckpointer, DdpCheckpointer.load_checkpoint),
            (FsdpShardCheckpointer, FsdpShardCheckpointer.get_storage_reader),
        ]:
            both = self.checkpointers(kind, save_timeout=0.2)
            # A preparation that does not end, and a save of another thread.
            ended, saves = threading.Event(), threading.Event()
            both[1]._preparation = threading.Thread(target=ended.wait)
            both[1]._preparation.start()
            self.addCleanup(ended.set)
            for error in self.on_all_ranks(lambda rank: load(both[rank])):
                self.assertIsInstance(error, FlashCheckpointError)
                self.assertIn("rank 1: the saver did not provide memory within 0 s", str(error))
            ended.set()

            def save():
                with both[1]._calls.held("save", time.monotonic()):
                    saves.set()
                    ended.wait()

            both[1]._preparation.join()
            ended.clear()
            thread = threading.Thread(target=save)
            thread.start()
            saves.wait()
            for error in self.on_all_ranks(lambda rank: load(both[rank])):
                self.assertIsInstance(error, FlashCheckpointError)
                self.assertIn("rank 1: cannot load: a call of another thread did not end in time", str(error))
            ended.set()
            thread.join()
            # They are in step after it.
            self.assertEqual([each or None for each in self.on_all_ranks(lambda rank: load(both[rank]))], [None] * 2)

    def test_the_limit_that_is_over_is_named(self):
        limit = self.exchange.OF_LOAD._replace(seconds=0.1)
        self.assertAbsent(self.of_rank(0, 60), r"within 0 s \(the limit of a load\)", limit)
        self.assertAbsent(self.of_rank(0, 0.1), r"within 0 s \(save_timeout\)")

    def test_all_ranks_hear_an_alarm_at_the_same_save(self):
        one, other = self.of_rank(0, 1), self.of_rank(1, 1)
        keys = self.exchange._store().num_keys()
        self.assertFalse(one.alarmed("save 1"))
        one.alarm()
        # It is late at the save that has failed.
        self.assertFalse(other.alarmed("save 1"))
        # It comes first at the next one.
        self.assertTrue(other.alarmed("save 2"))
        other.alarm()
        self.assertTrue(one.alarmed("save 2"))
        for each in (one, other):
            self.assertTrue(each.alarmed("save 3"))
        # It is ahead of the one that fails.
        self.assertFalse(other.alarmed("save 4"))
        one.alarm()
        one.alarm()
        self.assertFalse(one.alarmed("save 4"))
        # Steps may be saved anew, also older ones.
        for step, is_new in [(3, True), (3, False), (1, False)]:
            self.assertEqual([each.alarmed("save %d" % step) for each in (one, other)], [is_new] * 2)
        # Nothing else stays than the number of alarms.
        self.assertEqual(self.exchange._store().num_keys(), keys + 1)

    def test_what_workers_before_a_restart_have_left_is_no_answer(self):
        # As under torchrun, which keeps its store.
        self.assertAbsent(self.of_rank(1, 0.1), "rank 0 sent no decision")
        self.exchange._counts.clear()
        self.assertAbsent(self.of_rank(0, 0.1, restarts=1), "rank 1 did not take part")


@needs_torch
class SameState(TogetherTest):
    """A state that is the same on all ranks: those that cannot load what others load do not go on from another step."""

    KIND = "same"

    def answered(self, *answers, named):
        """What the ranks load when their savers say these steps, and the job has named one."""
        savers = [self.reference() for _ in answers]
        for saver, step in zip(savers, answers):
            path = step and self.path(str(step), "rank_0.pt")
            source = "disk" if step else "none"
            saver.load_answer = dict(source=source, path=path, step=step, reason="it says so", named=named)
        return self.load(of_rank={rank: {"DLROVER_CKPT_SOCK": saver.address} for rank, saver in enumerate(savers)})

    def test_a_file_that_one_node_cannot_load(self):
        self.load("save", "10", "save", "20")
        self.damage("20", "rank_0.pt")
        found, ends = self.answered(20, 10, named=20)
        self.assertEqual(found, [[10, 0, "disk"]] * 2)
        self.assertIn("step 20: %s was changed after it was written" % self.path("20", "rank_0.pt"), ends[0][2])

    def test_a_node_that_looked_too_early(self):
        self.load("save", "10", "save", "20")
        self.assertEqual(self.answered(20, 10, named=None)[0], [[20, 0, "disk"]] * 2)
        self.assertEqual(self.answered(20, None, named=None)[0], [[20, 0, "disk"]] * 2)

    def test_a_node_without_the_directory(self):
        self.load("save", "10")
        for name, text in self.answered(10, None, named=10)[0]:
            self.assertEqual(name, "NothingLoads")
            self.assertIn("rank 1: all ranks restore step 10 from %s, where this node finds" % self.folder, text)

    def test_a_file_without_a_checksum_that_does_not_load(self):
        self.load("save", "10")
        # As of DLRover.
        os.makedirs(self.path("20"))
        with open(self.path("20", "rank_0.pt"), "w") as file:
            file.write("x")
        os.symlink("rank_0.pt", self.path("20", "rank_1.pt"))
        with open(self.path("dlrover_latest.txt"), "w") as file:
            file.write("20")
        found, ends = self.load()
        self.assertEqual(found, [[10, 0, "disk"]] * 2)
        self.assertIn("step 20: rank 0 cannot load it", ends[0][2])

    def test_the_first_start(self):
        self.assertEqual(self.load()[0], [[None, None, "none"]] * 2)
        self.assertEqual(self.answered(None, None, named=None)[0], [[None, None, "none"]] * 2)


@needs_torch
class Together(TogetherTest):

    def test_without_a_saver(self):
        found, ends = self.load("save", "10", "save", "20")
        self.assertEqual(found, [[20, 0, "disk"], [20, 1, "disk"]])
        self.damage("20", "rank_1.pt")
        found, ends = self.load()
        self.assertEqual(found, [[10, 0, "disk"], [10, 1, "disk"]])
        self.assertIn("was changed after it was written", ends[0][2])
        # Each rank has read its own file only.
        self.assertNotIn("each rank reads and checks", ends[0][2])
        self.damage("10", "rank_0.pt")
        for name, text in self.load()[0]:
            self.assertEqual(name, "NothingLoads")
            self.assertIn("20/rank_1.pt was changed after it was written", text)

    def test_nodes_that_have_counted_different_restarts_agree(self):
        # As after a failure of one node's worker: the other node has spent no restart.
        of_rank = {rank: {"TORCHELASTIC_RESTART_COUNT": str(rank)} for rank in range(WORLD)}
        found, _ = self.load("save", "10", of_rank=of_rank, DLROVER_ROUND="1", SAVE_TIMEOUT="20")
        self.assertEqual(found, [[10, 0, "disk"], [10, 1, "disk"]])

    def test_a_directory_that_cannot_be_read_is_not_an_empty_one(self):
        with open(self.path(".dlrover"), "w"):
            pass
        for name, text in self.load()[0]:
            self.assertEqual(name, "NothingLoads")
            self.assertIn("rank 0: no checkpoint in %s can be loaded" % self.folder, text)
            self.assertIn("[Errno 20] Not a directory: '%s'" % self.path(".dlrover"), text)

    def test_savers_that_answer_differently(self):
        self.write(10, 20)
        self.damage("20", "rank_1.pt")
        savers = [self.reference(), self.reference()]
        for rank, step in [(0, 20), (1, 10)]:
            path = self.path(str(step), "rank_%d.pt" % rank)
            savers[rank].load_answer = {"source": "disk", "path": path, "step": step, "reason": "it says so"}
        of_rank = {rank: {"DLROVER_CKPT_SOCK": saver.address} for rank, saver in enumerate(savers)}
        self.assertEqual(self.load(of_rank=of_rank)[0], [[10, 0, "disk"], [10, 1, "disk"]])
        # One has it in memory, and the other has lost its saver.
        savers[0].load_answer = None
        self.load("save", "30", of_rank=of_rank)
        savers[1].faults["load"] = "close"
        self.assertEqual(self.load(of_rank=of_rank)[0], [[10, 0, "disk"], [10, 1, "disk"]])
        # An error of one rank is one of all.
        savers[1].errors["load"] = "stale_round", {}
        for name, text in self.load(of_rank=of_rank)[0]:
            self.assertEqual(name, "FlashCheckpointError")
            self.assertIn("rank 1: the test says so (stale_round)", text)


if __name__ == "__main__":
    unittest.main()
