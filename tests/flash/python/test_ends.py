"""Scripts that end right after a save: the threads that serve the next saves must not end the process by a signal."""

import os
import subprocess
import sys
import unittest

from support import HERE, ClientTest, environment, needs_torch


class Ends(ClientTest):
    def ends_well(self, *arguments):
        saver = self.reference()
        script = os.path.join(HERE, "programs", "ends.py")
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, script, self.folder, *arguments],
                env=environment(DLROVER_CKPT_SOCK=saver.address),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=300,
            )
            self.assertEqual((done.returncode, done.stdout), (0, b"saved\n"))
            saver.forget()

    @needs_torch
    def test_after_a_save_of_many_tensors(self):
        # Their places in the slots are made in a thread, which takes longer than the script.
        self.ends_well("20000")

    def test_after_a_save_without_tensors(self):
        self.ends_well("0")

    def test_in_a_handler_of_atexit(self):
        # No thread can be started there.
        self.ends_well("0", "atexit")

    @needs_torch
    def test_in_a_handler_of_atexit_with_tensors(self):
        self.ends_well("20000", "atexit")


if __name__ == "__main__":
    unittest.main()
