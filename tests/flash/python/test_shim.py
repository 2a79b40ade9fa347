"""The names of DLRover, without torch."""

import os
import subprocess
import sys
import unittest

from support import ClientTest, environment

from dlrover_run.flash_checkpoint.strategies import KeepLatestStepStrategy, KeepStepIntervalStrategy, keep_of


def run(code, **variables):
    done = subprocess.run([sys.executable, "-c", code], env=environment(**variables), capture_output=True, timeout=60)
    return done.returncode, done.stdout.decode().strip(), done.stderr.decode()


class Shim(ClientTest):
    def test_names_are_there_after_the_import_only(self):
        names = (
            "from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType\n"
            "from dlrover.trainer.torch.flash_checkpoint.checkpointer import Checkpointer, StorageType as S\n"
            "from dlrover.trainer.torch.flash_checkpoint.fsdp import FsdpShardCheckpointer, FsdpFullCheckpointer\n"
            "from dlrover.trainer.torch.flash_checkpoint.megatron import StorageType, save_checkpoint\n"
            "from dlrover.trainer.torch.flash_checkpoint.megatron_dist_ckpt import load_checkpoint\n"
            "from dlrover.trainer.torch.flash_checkpoint.deepspeed import DeepSpeedCheckpointer\n"
            "from dlrover.python.common.storage import KeepLatestStepStrategy, KeepStepIntervalStrategy\n"
            "import sys; assert S is StorageType and 'torch' not in sys.modules; print('all there')\n"
        )
        code, said, error = run("import dlrover_run.shim\n" + names)
        self.assertEqual((code, said), (0, "all there"), error)
        code, _, error = run(names)
        self.assertNotEqual(code, 0)
        self.assertIn("No module named 'dlrover'", error)
        code, _, error = run("import dlrover_run.shim, dlrover.trainer.other")
        self.assertIn("No module named 'dlrover.trainer.other'", error)

    def test_an_installed_dlrover_is_left_alone(self):
        os.makedirs(os.path.join(self.folder, "dlrover", "trainer"))
        for name in ("dlrover/__init__.py", "dlrover/trainer/__init__.py"):
            with open(os.path.join(self.folder, name), "w") as file:
                file.write("mine = %r\n" % name)
        path = os.pathsep.join([environment()["PYTHONPATH"], self.folder])
        code, said, error = run(
            "import dlrover_run.shim, dlrover.trainer; print(dlrover.mine, dlrover.trainer.mine)", PYTHONPATH=path
        )
        self.assertEqual((code, said), (0, "dlrover/__init__.py dlrover/trainer/__init__.py"), error)
        code, _, error = run("import dlrover_run.shim, dlrover.trainer.torch.flash_checkpoint.ddp", PYTHONPATH=path)
        self.assertIn("No module named 'dlrover.trainer.torch'", error)

    def test_nothing_heavy_is_imported(self):
        code, said, error = run(
            "import sys; before = set(sys.modules); import dlrover_run.flash_checkpoint as f\n"
            "f.DdpCheckpointer; f.FsdpShardCheckpointer\n"
            "print('torch' in sys.modules, 'numpy' in sys.modules)"
        )
        self.assertEqual((code, said), (0, "False False"), error)

    def test_a_script_runs_as_itself(self):
        path = os.path.join(self.folder, "script.py")
        with open(path, "w") as file:
            file.write("import sys, dlrover\nprint(__name__, sys.argv, sys.path[0])\n")
        done = subprocess.run(
            [sys.executable, "-m", "dlrover_run.shim", path, "a", "-b"],
            env=environment(),
            capture_output=True,
            timeout=60,
        )
        self.assertEqual(done.stdout.decode().strip(), "__main__ %r %s" % ([path, "a", "-b"], self.folder), done.stderr)


class Strategies(ClientTest):
    def test_known_ones_are_named_to_the_saver(self):
        self.assertEqual(keep_of(KeepLatestStepStrategy(3, "/x")), {"latest": 3})
        self.assertEqual(keep_of(KeepStepIntervalStrategy(10, "/x")), {"interval": 10})
        self.assertIsNone(keep_of(None))

    def test_those_of_dlrover_are_known_by_name(self):
        theirs = type("KeepLatestStepStrategy", (), {})()
        theirs._max_to_keep = 4
        self.assertEqual(keep_of(theirs), {"latest": 4})
        theirs = type("KeepStepIntervalStrategy", (), {})()
        theirs._keep_interval = 5
        self.assertEqual(keep_of(theirs), {"interval": 5})

    def test_others_keep_everything_and_are_said(self):
        self.assertIsNone(keep_of(object()))
        self.assertSaid("deletion_strategy object is unknown, so all checkpoints are kept")
        for wrong in (0, -1, 1.5, True):
            with self.assertRaisesRegex(ValueError, "expected a whole number of 1 or more"):
                KeepLatestStepStrategy(wrong)


if __name__ == "__main__":
    unittest.main()
