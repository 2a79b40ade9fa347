"""What a directory offers to a load when something is wrong with it. Without torch."""

import os
import unittest

from support import ClientTest

from dlrover_run.flash_checkpoint import DdpCheckpointer, NothingLoads


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

    def test_a_directory_that_is_missing_has_nothing(self):
        self.folder = self.path("missing", "deeper")
        self.assertEqual(self.load(), (None, "none"))


if __name__ == "__main__":
    unittest.main()
