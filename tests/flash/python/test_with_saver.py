"""The client with the saver itself, if DLROVER_SAVER names it: rounds, kills, disk."""

import os
import subprocess
import sys
import unittest

from support import HERE, ClientTest, environment, needs_torch, torch
from test_shards import WORLD, ShardsTest

SAVER = os.environ.get("DLROVER_SAVER")


def rounds(*commands, **options):
    """Runs each command as a round; returns its words, line by line, and the process."""
    command = [sys.executable, os.path.join(HERE, "with_saver.py")]
    for name, value in options.items():
        command += ["--" + name, str(value)]
    command.append(SAVER)
    for each in commands:
        command += ["--", sys.executable] + each
    done = subprocess.run(command, env=environment(OMP_NUM_THREADS="1"), capture_output=True, timeout=600)
    return [line.split(" ", 3) for line in done.stdout.decode().splitlines()], done


@unittest.skipIf(SAVER is None, "DLROVER_SAVER names no saver")
class WithoutTorch(ShardsTest):
    def test_a_changed_byte_in_the_file_of_one_rank_is_found_by_all(self):
        for kind in ("ddp", "rank"):
            folder, out = self.path(kind), self.path(kind + ".out")
            os.mkdir(out)
            program = [os.path.join(HERE, "programs", "shards.py"), kind, folder, out]
            _, done = rounds(program + ["save", "10", "save", "20"], ranks=WORLD)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.damage(folder, "20", "rank_1.pt")
            _, done = rounds(program + ["load"], ranks=WORLD)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.loaded(out), [[10, 0, "disk"], [10, 1, "disk"]], done.stderr)

    def test_an_order_of_millions_of_numbers_survives(self):
        program = os.path.join(HERE, "programs", "long_list.py")
        words, done = rounds([program, self.folder, "MEMORY"], [program, self.folder, "DISK"])
        self.assertEqual(done.returncode, 0, done.stderr)
        alone = subprocess.run(
            [sys.executable, program, self.folder, "DISK"], env=environment(), capture_output=True, timeout=300
        )
        words += [line.split() for line in alone.stdout.decode().splitlines()]
        self.assertEqual([word[1:] for word in words], [["none", "0"], ["memory", "1"], ["disk", "2"]], done.stderr)


@needs_torch
@unittest.skipIf(SAVER is None, "DLROVER_SAVER names no saver")
class WithSaver(ClientTest):
    def test_tests_of_one_process(self):
        for name in ("test_saver.py", "test_tensors.py"):
            _, done = rounds([os.path.join(HERE, name)])
            self.assertEqual(done.returncode, 0, done.stderr.decode())

    def test_the_guides_script_for_ddp_is_killed_and_goes_on(self):
        guide = ["-m", "dlrover_run.shim", os.path.join(HERE, "programs", "guide_ddp.py"), self.folder]
        words, done = rounds(guide + ["7", "die"], guide + ["5"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(words[2], ["loaded", "memory"] + words[1][1:])
        # The last one for the disk was written before the saver ended; without a saver it is found.
        loaded = torch.load(os.path.join(self.folder, "checkpoint-10.pt"), weights_only=True)
        self.assertEqual(loaded["step"], 10)
        self.assertEqual(len(loaded["model"]._metadata), 4)
        done = subprocess.run([sys.executable] + guide + ["1"], env=environment(), capture_output=True, timeout=300)
        self.assertEqual(done.stdout.decode().split()[:3], ["loaded", "disk", "10"], done.stderr)

    def test_sharded_states(self):
        for generation in "12":
            folder = os.path.join(self.folder, generation)
            program = [os.path.join(HERE, "programs", "fsdp.py"), folder, generation]
            words, done = rounds(
                program + ["save", "4"], program + ["save", "3", "memory"], program + ["load"], ranks=2
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            saved = [word for word in words if word[0] == "saved"]
            self.assertEqual(words[-1], ["loaded", "memory"] + saved[-1][1:], done.stderr)
            # Stock torch reads what the saver wrote, also in another world.
            alone = subprocess.run(
                [sys.executable] + program + ["load"], env=environment(), capture_output=True, timeout=300
            )
            self.assertEqual(alone.stdout.decode().split(), ["loaded", "disk"] + saved[0][1:], alone.stderr)

    def test_without_memory_files_are_written_all_the_same(self):
        guide = ["-m", "dlrover_run.shim", os.path.join(HERE, "programs", "guide_ddp.py"), self.folder, "5"]
        words, done = rounds(guide, guide, allowance=1000)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("(no_memory); checkpoints are written to disk by the training process", done.stderr.decode())
        self.assertEqual(words[2][:3], ["loaded", "disk", "5"])


if __name__ == "__main__":
    unittest.main()
