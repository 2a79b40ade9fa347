"""What a directory offers to a load when something is wrong with it. Without torch."""

import errno
import json
import os
import shutil
import unittest

from support import ClientTest, crashes

from dlrover_run.flash_checkpoint import (
    DdpCheckpointer,
    KeepLatestStepStrategy,
    NothingLoads,
    documents,
    plain_file,
    synchronous,
)


class DiskTest(ClientTest):
    def path(self, *names):
        return os.path.join(self.folder, *names)

    def save(self, *steps, path=""):
        checkpointer = DdpCheckpointer(self.folder, on_error="raise")
        for step in steps:
            self.assertTrue(checkpointer.save_checkpoint(step, {"step": step, "bytes": b"%d" % step * 1000}, path))

    def load(self):
        checkpointer = DdpCheckpointer(self.folder)
        return checkpointer.load_checkpoint().get("step"), checkpointer.last_load.source


class Unreadable(DiskTest):
    """A directory that cannot be read is not an empty one."""

    def assertNothingLoads(self, reason):
        with self.assertRaisesRegex(NothingLoads, reason + ".*Training does not start from scratch"):
            self.load()

    def test_a_directory_of_manifests_that_cannot_be_read(self):
        self.save(1)
        os.unlink(self.path("dlrover_latest.txt"))
        os.rename(self.path(".dlrover"), self.path("away"))
        with open(self.path(".dlrover"), "w"):
            pass
        self.assertNothingLoads("Errno 20] Not a directory: '%s'" % self.path(".dlrover"))
        os.unlink(self.path(".dlrover"))
        # As a file server that does not answer.
        os.symlink(".dlrover", self.path(".dlrover"))
        self.assertNothingLoads("Errno 40] .*: '%s'" % self.path(".dlrover"))
        os.unlink(self.path(".dlrover"))
        os.rename(self.path("away"), self.path(".dlrover"))
        self.assertEqual(self.load(), (1, "disk"))

    @unittest.skipIf(os.geteuid() == 0, "root may read any directory")
    def test_a_directory_of_another_user(self):
        self.save(1)
        os.unlink(self.path("dlrover_latest.txt"))
        os.chmod(self.path(".dlrover"), 0)
        self.addCleanup(os.chmod, self.path(".dlrover"), 0o700)
        self.assertNothingLoads("Errno 13] Permission denied: '%s'" % self.path(".dlrover"))

    def test_a_file_in_the_place_of_the_directory(self):
        os.rmdir(self.folder)
        with open(self.folder, "w"):
            pass
        self.addCleanup(os.unlink, self.folder)
        self.assertNothingLoads("Errno 20] Not a directory: '%s'" % self.path(".dlrover"))

    def test_a_name_that_no_file_can_have(self):
        self.save(1, 2)
        with open(self.path(".dlrover", "2.json")) as file:
            good = json.load(file)
        for name, reason in [("2/rank_0.pt\0", "has a null character"), ("\ud800", "UnicodeEncodeError")]:
            with open(self.path(".dlrover", "2.json"), "w") as file:
                json.dump(dict(good, shards=[dict(good["shards"][0], file=name)]), file)
            self.assertEqual(self.load(), (1, "disk"))
            self.assertSaid(reason)

    def test_a_directory_that_is_missing_has_nothing(self):
        self.folder = self.path("missing", "deeper")
        self.assertEqual(self.load(), (None, "none"))


class InOnePlace(DiskTest):
    """Steps that are all saved to the same path."""

    def save_last(self, *steps):
        self.save(*steps, path=self.path("last.pt"))

    def step_of_file(self):
        return plain_file.read(self.path("last.pt"))["step"]

    def test_a_kill_at_any_moment_leaves_a_step(self):
        found = set()
        self.save_last(10)
        for number in crashes(lambda: self.save_last(20)):
            step, source = self.load()
            self.assertIn((step, source), [(10, "disk"), (20, "disk")], number)
            found.add(step)
            # The load has finished what was begun, so that another one finds the same.
            self.assertEqual((self.step_of_file(), self.load()), (step, (step, "disk")), number)
            # As it was before.
            shutil.rmtree(self.folder)
            self.save_last(10)
        self.assertEqual(found, {10, 20})
        self.assertEqual((self.step_of_file(), self.load()), (20, (20, "disk")))
        self.assertEqual(sorted(os.listdir(self.folder)), [".dlrover", "dlrover_latest.txt", "last.pt"])

    def test_a_kill_at_any_moment_leaves_a_step_that_is_saved_anew(self):
        self.save(10, path=self.path("10.pt"))
        self.save_last(20)
        for number in crashes(lambda: self.save_last(20)):
            self.assertEqual(self.load(), (20, "disk"), number)
            shutil.rmtree(self.folder)
            self.save(10, path=self.path("10.pt"))
            self.save_last(20)

    def interrupted(self):
        """Step 20 counts, and its file has not got its name yet."""
        self.save_last(10)
        os.rename(self.path("last.pt"), self.path("of 10"))
        self.save_last(20)
        os.rename(self.path("last.pt"), self.path("last.pt.dlrover-staged-20"))
        os.rename(self.path("of 10"), self.path("last.pt"))

    def test_a_file_that_waits_for_its_name_gets_it_by_a_load(self):
        self.interrupted()
        self.assertEqual((self.load(), self.step_of_file()), ((20, "disk"), 20))

    def test_a_file_that_waits_for_its_name_is_loaded_where_it_cannot_get_it(self):
        self.interrupted()
        original = os.replace
        self.addCleanup(setattr, os, "replace", original)
        os.replace = self.refuse
        self.assertEqual((self.load(), self.step_of_file()), ((20, "disk"), 10))

    def refuse(self, source, target):
        # As root, a test has no directory that it cannot write to.
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), source)

    def test_a_file_that_waits_and_differs_is_not_taken(self):
        self.interrupted()
        with open(self.path("last.pt.dlrover-staged-20"), "r+b") as file:
            file.seek(500)
            file.write(b"\x55")
        self.assertEqual((self.load(), self.step_of_file()), ((10, "disk"), 10))

    def test_the_next_save_keeps_a_file_that_waits_until_it_counts(self):
        found = set()
        self.interrupted()
        for number in crashes(lambda: self.save_last(30)):
            step, _ = self.load()
            self.assertIn(step, (20, 30), number)
            found.add(step)
            shutil.rmtree(self.folder)
            self.interrupted()
        self.assertEqual(found, {20, 30})
        self.assertEqual(sorted(os.listdir(self.folder)), [".dlrover", "dlrover_latest.txt", "last.pt"])

    def stale(self, content):
        """What a killed writer of step 20 has left."""
        with open(self.path("last.pt.dlrover-staged-20"), "wb") as file:
            file.write(content)

    def test_a_file_that_a_killed_writer_has_left_takes_no_name(self):
        self.save_last(20)
        size = os.path.getsize(self.path("last.pt"))
        for content in (b"", b"z" * size):
            shutil.rmtree(self.folder)
            os.mkdir(self.folder)
            self.stale(content)
            self.save_last(20)
            self.assertEqual((self.load(), self.step_of_file()), ((20, "disk"), 20))
            self.assertEqual(sorted(os.listdir(self.folder)), [".dlrover", "dlrover_latest.txt", "last.pt"])

    def test_a_file_of_another_size_takes_no_name(self):
        own = DdpCheckpointer(self.folder)._identity
        shard = synchronous.write_file(own, 20, {"step": 20}, self.path("last.pt"))
        self.stale(b"")
        synchronous.commit(own, 20, [shard])
        self.assertEqual((self.load(), self.step_of_file()), ((20, "disk"), 20))

    def test_a_step_whose_file_waits_is_saved_anew(self):
        def begin():
            shutil.rmtree(self.folder, ignore_errors=True)
            os.mkdir(self.folder)
            self.save(10)
            self.save_last(20)
            # It counts, and has not got its name yet.
            os.rename(self.path("last.pt"), self.path("last.pt.dlrover-staged-20"))

        begin()
        for number in crashes(lambda: self.save_last(20)):
            self.assertEqual(self.load(), (20, "disk"), number)
            begin()
        self.assertEqual((self.load(), self.step_of_file()), ((20, "disk"), 20))

    def test_a_directory_in_the_place_of_the_file(self):
        self.save_last(10)
        os.mkdir(self.path("other"))
        checkpointer = DdpCheckpointer(self.folder)
        result = checkpointer.save_checkpoint(20, {"step": 20}, self.path("other"))
        self.assertIn("Is a directory: '%s'" % self.path("other"), result.error)
        self.assertEqual(self.load(), (10, "disk"))

    def test_a_step_that_is_deleted_leaves_nothing_that_waits(self):
        self.save(10)
        os.rename(self.path("10", "rank_0.pt"), self.path("10", "rank_0.pt.dlrover-staged-10"))
        checkpointer = DdpCheckpointer(self.folder, deletion_strategy=KeepLatestStepStrategy(1, self.folder))
        self.assertTrue(checkpointer.save_checkpoint(20, {"step": 20}))
        self.assertEqual(sorted(os.listdir(self.folder)), [".dlrover", "20", "dlrover_latest.txt"])


class Named(DiskTest):
    """The job has named a step on disk, which all ranks restore; ranks that cannot ask each other."""

    def answer(self, world, **answer):
        saver = self.reference()
        saver.load_answer = dict({"reason": "step 20 cannot be loaded: it was truncated"}, **answer)
        os.environ.update(RANK="0", WORLD_SIZE=str(world), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")

    def disk(self, step, **more):
        return dict(source="disk", step=step, path=self.path(str(step), "rank_0.pt"), **more)

    def test_another_step_is_not_loaded_instead(self):
        self.save(10, 20)
        self.answer(2, **self.disk(10, named=20))
        with self.assertRaisesRegex(
            NothingLoads,
            "all ranks restore step 20 from %s, which this node cannot load: step 20 cannot be loaded: it was trunc.*"
            "does not load step 10: repair or remove the files of step 20, or call init_process_group" % self.folder,
        ):
            self.load()

    def test_that_step_is_loaded(self):
        self.save(10, 20)
        self.answer(2, **self.disk(20, named=20))
        self.assertEqual(self.load(), (20, "disk"))

    def test_a_rank_that_is_alone_loads_an_older_one(self):
        self.save(10, 20)
        self.answer(1, **self.disk(10, named=20))
        self.assertEqual(self.load(), (10, "disk"))

    def test_the_first_start_names_none(self):
        self.save(10)
        self.answer(2, source="none", step=None)
        self.assertEqual(self.load(), (None, "none"))
        self.answer(2, **self.disk(10))
        self.assertEqual(self.load(), (10, "disk"))

    def test_nothing_is_no_step(self):
        for world in (1, 2):
            self.answer(world, source="none", step=None, named=20)
            with self.assertRaisesRegex(
                NothingLoads, "all ranks restore step 20 from %s, where this node finds no checkpoint" % self.folder
            ):
                self.load()


class Incomplete(DiskTest):
    def test_a_step_without_all_of_its_files_does_not_count(self):
        self.save(10)
        own = DdpCheckpointer(self.folder)._identity._replace(n_shards=2)
        shards = [synchronous.write_file(own._replace(rank=rank, shard=rank), 20, {}, "") for rank in (0, 1)]
        for damage, reason in [
            (lambda path: os.truncate(path, 100), "has the size 100 B; expected"),
            (os.unlink, "No such file or directory"),
        ]:
            damage(self.path("20", "rank_1.pt"))
            with self.assertRaisesRegex(documents.Unusable, "20/rank_1.pt.*%s|%s.*20/rank_1.pt" % (reason, reason)):
                synchronous.commit(own, 20, shards)
            self.assertEqual(os.listdir(self.path(".dlrover")), ["10.json"])
            self.assertEqual(self.load(), (10, "disk"))


if __name__ == "__main__":
    unittest.main()
