"""States without tensors, on disk and without torch."""

import collections
import os
import sys
import unittest

from support import ClientTest, torch

STATE = {
    "step": 7,
    "nested": [1.5, None, True, ("a", b"\0\xff" * 5000)],
    "ordered": collections.OrderedDict([("b", 1), ("a", -(1 << 70))]),
}


class WithoutTorch:
    """While it runs, torch cannot be imported."""

    def __enter__(self):
        self.module = sys.modules.get("torch")
        sys.modules["torch"] = None

    def __exit__(self, *_):
        if self.module is None:
            del sys.modules["torch"]
        else:
            sys.modules["torch"] = self.module


class PlainFile(ClientTest):
    def path(self):
        return os.path.join(self.folder, "rank_0.pt")

    def test_a_state_comes_back(self):
        from dlrover_run.flash_checkpoint import disk, plain_file

        plain_file.write(STATE, self.path())
        with WithoutTorch():
            self.assertEqual(disk.load_file(self.path()), STATE)

    def test_what_is_no_such_file_is_refused(self):
        from dlrover_run.flash_checkpoint import disk

        with open(self.path(), "wb") as file:
            file.write(b"not a zip")
        with WithoutTorch():
            self.assertRaises(Exception, disk.load_file, self.path())

    def test_a_checkpointer_saves_and_loads_without_torch_and_without_a_saver(self):
        from dlrover_run.flash_checkpoint import DdpCheckpointer

        with WithoutTorch():
            saved = DdpCheckpointer(self.folder).save_checkpoint(7, STATE)
            self.assertTrue(saved, saved.error)
            checkpointer = DdpCheckpointer(self.folder)
            self.assertEqual(checkpointer.load_checkpoint(), STATE)
            self.assertEqual(checkpointer.last_load[:2], ("disk", 7))

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_torch_reads_it(self):
        from dlrover_run.flash_checkpoint import plain_file

        plain_file.write(STATE, self.path())
        self.assertEqual(torch.load(self.path(), weights_only=False), STATE)
        self.assertEqual(torch.load(self.path(), weights_only=True), STATE)

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_without_torch_a_file_with_tensors_says_what_is_missing(self):
        from dlrover_run.flash_checkpoint import disk, plain_file

        torch.save({"step": 7}, self.path())
        with WithoutTorch():
            self.assertEqual(disk.load_file(self.path()), {"step": 7})
        torch.save({"weight": torch.ones(3)}, self.path())
        with WithoutTorch():
            with self.assertRaisesRegex(plain_file.NeedsTorch, "torch cannot be imported"):
                disk.load_file(self.path())


if __name__ == "__main__":
    unittest.main()
