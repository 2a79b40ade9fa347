"""The guide's script for DDP, killed and started again; and loads without a saver. With torch."""

import json
import os
import subprocess
import sys
import unittest

from support import HERE, ClientTest, environment, needs_torch, same, torch

from dlrover_run.flash_checkpoint import (
    DdpCheckpointer,
    KeepLatestStepStrategy,
    KeepStepIntervalStrategy,
    NothingLoads,
    StorageType,
)


def run(folder, steps, *options, **variables):
    """Runs the guide's script; returns its words."""
    command = [
        sys.executable,
        "-m",
        "dlrover_run.shim",
        os.path.join(HERE, "programs", "guide_ddp.py"),
        folder,
        str(steps),
    ]
    done = subprocess.run(command + list(options), env=environment(**variables), capture_output=True, timeout=300)
    return [line.split() for line in done.stdout.decode().splitlines()], done


@needs_torch
class Guide(ClientTest):
    def test_a_killed_script_goes_on_from_memory(self):
        self.reference()
        address = os.environ["DLROVER_CKPT_SOCK"]
        words, done = run(self.folder, 7, "die", DLROVER_CKPT_SOCK=address)
        self.assertEqual(done.returncode, -9, done.stderr)
        self.assertEqual(words[0][:3], ["loaded", "none", "0"])
        saved = words[1][1:]
        words, done = run(self.folder, 3, DLROVER_CKPT_SOCK=address)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(words[0], ["loaded", "memory"] + saved)
        self.assertEqual(words[1][1], "10")

    def test_without_a_saver_it_goes_on_from_disk(self):
        words, done = run(self.folder, 7)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.decode().count("DLROVER_CKPT_SOCK is not set"), 2, done.stderr)
        again, done = run(self.folder, 3)
        # Step 5 was the last one for the disk.
        self.assertEqual(again[0][:3], ["loaded", "disk", "5"], done.stderr)
        loaded = torch.load(os.path.join(self.folder, "checkpoint-5.pt"), weights_only=True)
        self.assertEqual(loaded["step"], 5)
        with open(os.path.join(self.folder, "dlrover_latest.txt")) as file:
            self.assertEqual(file.read(), "5")
        with open(os.path.join(self.folder, ".dlrover", "5.json")) as file:
            manifest = json.load(file)
        self.assertEqual((manifest["step"], manifest["shards"][0]["file"]), (5, "checkpoint-5.pt"))
        self.assertEqual([name for name in os.listdir(self.folder) if "tmp" in name], [])


@needs_torch
class Disk(ClientTest):
    def save(self, *steps, **options):
        checkpointer = DdpCheckpointer(self.folder, on_error="raise", **options)
        for step in steps:
            self.assertTrue(checkpointer.save_checkpoint(step, {"step": step, "x": torch.full((1000,), float(step))}))
        return checkpointer

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def load(self):
        checkpointer = DdpCheckpointer(self.folder)
        return checkpointer.load_checkpoint().get("step"), checkpointer.last_load.source

    def test_a_changed_byte_is_found_and_an_older_step_is_loaded(self):
        self.save(1, 2, 3)
        with open(self.path("3", "rank_0.pt"), "r+b") as file:
            file.seek(-3000, os.SEEK_END)
            file.write(b"\x55")
        self.assertEqual(self.load(), (2, "disk"))
        self.assertSaid("step 3: %s was changed after it was written" % self.path("3", "rank_0.pt"))
        os.truncate(self.path("2", "rank_0.pt"), 100)
        self.assertEqual(self.load(), (1, "disk"))
        self.assertSaid("has the size 100 B; expected")
        os.unlink(self.path("1", "rank_0.pt"))
        with self.assertRaisesRegex(
            NothingLoads, "no checkpoint in .* can be loaded: step 3: .*Training does not start"
        ):
            self.load()

    def test_a_tracker_without_a_checkpoint_is_an_error(self):
        for text, reason in [("7", "step 7, which the tracker names, has no manifest"), ("x", "expected a step")]:
            with open(self.path("dlrover_latest.txt"), "w") as file:
                file.write(text)
            with self.assertRaisesRegex(NothingLoads, reason):
                self.load()

    def test_manifests_that_cannot_be_used_are_passed_over(self):
        self.save(1, 2, 3)
        with open(self.path(".dlrover", "3.json")) as file:
            good = json.load(file)
        shard = good["shards"][0]
        for bad in (
            "",
            "[]",
            "{",
            "[" * 100000,
            "null",
            dict(good, version=2),
            dict(good, step=2),
            dict(good, shards=[]),
            dict(good, format="x"),
            dict(good, shards=[dict(shard, crc32=[])]),
            dict(good, shards=[dict(shard, crc32=["a"])]),
            dict(good, shards=[dict(shard, bytes=-1)]),
            dict(good, shards=[dict(shard, file=5)]),
            dict(good, shards=[dict(shard, file="3/rank_0.pt\0")]),
            dict(good, shards=[dict(shard, file="\ud800")]),
            dict(good, shards=[dict(shard, chunk_bytes=0)]),
            dict(good, shards=5),
            dict(good, shards=[5]),
        ):
            with open(self.path(".dlrover", "3.json"), "w") as file:
                file.write(bad if isinstance(bad, str) else json.dumps(bad))
            self.assertEqual(self.load(), (2, "disk"), bad)

    def test_a_checkpoint_of_dlrover_is_loaded(self):
        os.makedirs(self.path("4"))
        torch.save({"step": 4}, self.path("4", "rank_0.pt"))
        with open(self.path("dlrover_latest.txt"), "w") as file:
            file.write("4")
        self.assertEqual(self.load(), (4, "disk"))

    def test_a_path_that_is_given_is_loaded_always(self):
        self.save(1, 2)
        checkpointer = DdpCheckpointer(self.folder)
        self.assertEqual(checkpointer.load_checkpoint(self.path("1", "rank_0.pt"))["step"], 1)
        self.assertEqual(checkpointer.last_load.source, "file")
        with self.assertRaises(FileNotFoundError):
            checkpointer.load_checkpoint(self.path("3", "rank_0.pt"))

    def test_a_step_newer_than_the_tracker_does_not_count(self):
        self.save(1, 2)
        with open(self.path("dlrover_latest.txt"), "w") as file:
            file.write("1\n")
        self.assertEqual(self.load(), (1, "disk"))
        os.unlink(self.path("dlrover_latest.txt"))
        self.assertEqual(self.load(), (2, "disk"))

    def test_older_steps_are_deleted_as_the_strategy_says(self):
        self.save(1, 2, 3, 4, deletion_strategy=KeepLatestStepStrategy(2, self.folder))
        self.assertEqual(sorted(os.listdir(self.folder)), [".dlrover", "3", "4", "dlrover_latest.txt"])
        self.save(5, 6, 7, deletion_strategy=KeepStepIntervalStrategy(3, self.folder))
        self.assertEqual(sorted(os.listdir(self.folder)), [".dlrover", "3", "6", "7", "dlrover_latest.txt"])
        self.assertEqual(sorted(os.listdir(self.path(".dlrover"))), ["3.json", "6.json", "7.json"])

    def test_a_failed_write_leaves_what_was_there(self):
        self.save(1)
        os.makedirs(self.path("2", "rank_0.pt", "in the way"))
        checkpointer = DdpCheckpointer(self.folder)
        result = checkpointer.save_checkpoint(2, {"step": 2})
        self.assertFalse(result)
        self.assertIn("it could not be written to disk", result.error)
        self.assertEqual(self.load(), (1, "disk"))
        self.assertEqual(os.listdir(self.path("2")), ["rank_0.pt"])

    def test_a_saver_that_goes_leaves_the_disk(self):
        saver = self.reference()
        checkpointer = DdpCheckpointer(self.folder, on_error="raise")
        state = {"step": 1, "x": torch.ones(1000)}
        self.assertTrue(checkpointer.save_checkpoint(1, state))
        saver.stop()
        self.assertTrue(checkpointer.save_checkpoint(2, dict(state, step=2)))
        self.assertSaid("written to disk by the training process")
        self.assertTrue(checkpointer.save_checkpoint(3, dict(state, step=3)))
        self.assertEqual(self.load(), (3, "disk"))
        checkpointer = DdpCheckpointer(self.folder)
        result = checkpointer.save_checkpoint(4, state, storage_type=StorageType.MEMORY)
        self.assertFalse(result)
        self.assertIn("checkpoints in memory are not kept", result.error)

    def test_what_the_saver_finds_on_disk_is_loaded(self):
        self.save(1)
        saver = self.reference()
        saver.load_answer = {"source": "disk", "path": self.path("1", "rank_0.pt"), "step": 1, "reason": "it says so"}
        checkpointer = DdpCheckpointer(self.folder)
        same({"step": 1, "x": torch.full((1000,), 1.0)}, checkpointer.load_checkpoint())
        self.assertEqual(checkpointer.last_load, ("disk", 1, "it says so"))
        saver.load_answer["path"] = self.path("none.pt")
        with self.assertRaisesRegex(NothingLoads, "step 1 cannot be loaded from"):
            checkpointer.load_checkpoint()


if __name__ == "__main__":
    unittest.main()
