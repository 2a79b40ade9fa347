"""Scripts that end right after a save, and processes in which no thread can be started."""

import os
import subprocess
import sys
import threading
import unittest
from unittest import mock

from support import HERE, ClientTest, environment, needs_torch, same

from dlrover_run.flash_checkpoint import DdpCheckpointer, StorageType


class Ends(ClientTest):
    """The threads that serve the next saves must not end the process by a signal, nor hold it up."""

    def ends_well(self, *arguments, saver=None, seconds=300):
        """The script comes to its end, and its process ends at most that much later, with nothing on stderr."""
        saver = saver or self.reference()
        script = os.path.join(HERE, "programs", "ends.py")
        for _ in range(2):
            process = subprocess.Popen(
                [sys.executable, script, self.folder, *arguments],
                env=environment(DLROVER_CKPT_SOCK=saver.address),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            with process:
                self.addCleanup(process.kill)
                first = process.stdout.readline()
                rest, _ = process.communicate(timeout=seconds)
            self.assertEqual((process.returncode, first, rest), (0, b"saved\n", b""))
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

    @needs_torch
    def test_when_the_saver_hangs_in_a_preparation(self):
        saver = self.reference()
        saver.faults["alloc"] = "hang"
        # Threads that are inside of torch are waited for for 60 s.
        self.ends_well("20", "prepare", saver=saver, seconds=40)

    @needs_torch
    def test_after_training_in_a_thread_that_the_script_does_not_join(self):
        self.ends_well("20000", "thread")


class NoThreads(ClientTest):
    """As in a container that has all the threads that it may have."""

    def setUp(self):
        super().setUp()
        self.reference()
        refusal = mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread"))
        # The saver of this test has its threads already, but one for each connection.
        self.checkpointer = DdpCheckpointer(self.folder, on_error="raise")
        self.checkpointer.load_checkpoint()
        refusal.start()
        self.addCleanup(refusal.stop)

    def saves_and_loads(self, state):
        self.checkpointer.prepare(state)
        for step in range(4):
            storage = StorageType.DISK if step == 1 else StorageType.MEMORY
            self.assertTrue(self.checkpointer.save_checkpoint(step, state, storage_type=storage))
            same(self.checkpointer.load_checkpoint(), state)
        self.assertEqual(self.said, [])

    def test_saves_and_loads(self):
        self.saves_and_loads({"text": "x" * 100})

    @needs_torch
    def test_saves_and_loads_of_large_tensors(self):
        import torch

        threads = torch.get_num_threads()
        self.addCleanup(torch.set_num_threads, threads)
        # So that the client would start some.
        torch.set_num_threads(1)
        self.saves_and_loads({"x%d" % number: torch.rand(3 << 20) for number in range(4)})


if __name__ == "__main__":
    unittest.main()
