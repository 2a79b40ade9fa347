"""Sharded states: two ranks on CPUs, both generations of FSDP, memory and disk. With torch."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from support import HERE, ClientTest, crashes, environment, lines, needs_torch, torch

WORLD = 2


def _port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def ranks(program, *arguments, **variables):
    """Runs a program on all ranks. `of_rank`: variables of each rank. Returns the words of rank 0, and all ends."""
    world, of_rank = variables.pop("world", WORLD), variables.pop("of_rank", {})
    shared = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=_port(), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
    shared.update(GROUP_RANK="0", OMP_NUM_THREADS="1", **variables)
    command = [sys.executable, os.path.join(HERE, "programs", program)] + list(arguments)
    children = [
        subprocess.Popen(
            command,
            env=environment(RANK=str(rank), LOCAL_RANK=str(rank), **dict(shared, **of_rank.get(rank, {}))),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(world)
    ]
    ends = []
    for child in children:
        try:
            out, error = child.communicate(timeout=300)
        finally:
            child.kill()
        ends.append((child.returncode, out.decode(), error.decode()))
    return [line.split(" ", 3) for line in lines(ends[0][1])], ends


@needs_torch
class Sharded(ClientTest):
    def ranks(self, program, *arguments, **variables):
        words, ends = ranks(program, *arguments, **variables)
        for code, out, error in ends:
            self.assertEqual(code, 0, (out, error))
        return words, ends

    def test_both_generations_from_memory(self):
        self.reference()
        address = os.environ["DLROVER_CKPT_SOCK"]
        for generation in "12":
            folder = os.path.join(self.folder, generation)
            words, _ = self.ranks("fsdp.py", folder, generation, "save", "3", "memory", DLROVER_CKPT_SOCK=address)
            self.assertEqual([word[1] for word in words[:3]], ["True"] * 3, words)
            again, _ = self.ranks("fsdp.py", folder, generation, "load", DLROVER_CKPT_SOCK=address)
            self.assertEqual(again[-1], ["loaded", "memory"] + words[-1][1:])

    def test_both_generations_without_a_saver(self):
        for generation in "12":
            folder = os.path.join(self.folder, generation)
            words, ends = self.ranks("fsdp.py", folder, generation, "save", "2")
            self.assertEqual(words[0][1], "True", words)
            self.assertEqual("".join(error for _, _, error in ends).count("there is no saver"), 1)
            again, _ = self.ranks("fsdp.py", folder, generation, "load")
            self.assertEqual(again[-1], ["loaded", "disk"] + words[-1][1:])
            # Another world, and a directory that is given.
            path = os.path.join(folder, "1")
            alone, _ = self.ranks("fsdp.py", folder, generation, "load", "from", path, world=1)
            self.assertEqual(alone[-1][:3], ["loaded", "file", "1"])
            self.assertEqual([name for name in os.listdir(folder) if "dlrover-" in name], [])

    def test_folders_that_killed_processes_have_left_are_swept(self):
        from dlrover_run.flash_checkpoint import documents, sharded_files

        left = ["2.dlrover-tmp-1", "other.dlrover-tmp-9"]
        # One is being written, and others are not of ours.
        stays = ["1", "3.dlrover-tmp-2", "5.dlrover-tmp-x", "name", ".dlrover-tmp-1"]
        for name in left + stays:
            os.makedirs(os.path.join(self.folder, name, "deeper"))
        written = os.open(os.path.join(self.folder, "3.dlrover-tmp-2"), os.O_RDONLY)
        self.addCleanup(os.close, written)
        documents.lock(written)
        sharded_files.sweep(self.folder)
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(stays))

    def test_the_guides_script(self):
        self.reference()
        address = os.environ["DLROVER_CKPT_SOCK"]
        words, _ = self.ranks("guide_fsdp.py", self.folder, "7", DLROVER_CKPT_SOCK=address)
        again, _ = self.ranks("guide_fsdp.py", self.folder, "0", DLROVER_CKPT_SOCK=address)
        self.assertEqual(again[-1], ["loaded"] + words[-1][1:3] + [words[-1][3] + " memory"])
        alone = os.path.join(self.folder, "alone")
        self.assertEqual(self.ranks("guide_fsdp.py", alone, "0")[0], [])
        words, _ = self.ranks("guide_fsdp.py", alone, "7")
        again, _ = self.ranks("guide_fsdp.py", alone, "0")
        # Step 5 was the last one for the disk.
        self.assertEqual(again[-1], ["loaded"] + words[4][1:3] + [words[4][3] + " disk"])

    def test_full_states(self):
        self.reference()
        for generation in "12":
            for address in (os.environ["DLROVER_CKPT_SOCK"], ""):
                folder = os.path.join(self.folder, generation + address)
                words, _ = self.ranks("fsdp.py", folder, generation, "full", "save", "2", DLROVER_CKPT_SOCK=address)
                again, _ = self.ranks("fsdp.py", folder, generation, "full", "load", DLROVER_CKPT_SOCK=address)
                self.assertEqual(again[-1][2:], words[-1][1:])
                self.assertEqual(again[-1][1], "memory" if address else "disk")

    def test_one_process_without_a_group(self):
        for address in (self.reference() and os.environ["DLROVER_CKPT_SOCK"], ""):
            folder = os.path.join(self.folder, address or "alone")
            words, _ = self.ranks("fsdp.py", folder, "2", "save", "2", world=1, DLROVER_CKPT_SOCK=address or "")
            again, _ = self.ranks("fsdp.py", folder, "2", "load", world=1, DLROVER_CKPT_SOCK=address or "")
            self.assertEqual(again[-1][2:], words[-1][1:])

    def test_metadata_fits_the_files_that_a_saver_writes(self):
        saver = self.reference()
        for generation in "12":
            folder = os.path.join(self.folder, generation)
            words, _ = self.ranks("fsdp.py", folder, generation, "save", "3", DLROVER_CKPT_SOCK=saver.address)
            import distcp

            distcp.write(os.path.join(folder, "3"), [saver.shards[(folder, rank)].newest() for rank in range(WORLD)])
            # Without a saver, as a directory that is given: stock torch reads it.
            path = os.path.join(folder, "3")
            again, _ = self.ranks("fsdp.py", folder, generation, "load", "from", path)
            self.assertEqual(again[-1], ["loaded", "file"] + words[-1][1:])
            alone, _ = self.ranks("fsdp.py", folder, generation, "load", "from", path, world=1)
            self.assertEqual(alone[-1][:3], ["loaded", "file", "3"])


@needs_torch
class InOnePlace(ClientTest):
    """Steps that are all saved to the same directory."""

    def save(self, step):
        from dlrover_run.flash_checkpoint import FsdpShardCheckpointer

        checkpointer = FsdpShardCheckpointer(self.folder, on_error="raise")
        state = {"step": step, "x": torch.full((100,), float(step))}
        self.assertTrue(checkpointer.save_checkpoint(step, state, os.path.join(self.folder, "last")))

    def load(self):
        import torch.distributed.checkpoint as dcp

        from dlrover_run.flash_checkpoint import FsdpShardCheckpointer

        checkpointer = FsdpShardCheckpointer(self.folder)
        reader = checkpointer.get_storage_reader()
        state = {"step": 0, "x": torch.zeros(100)}
        dcp.load(state, storage_reader=reader)
        self.assertEqual(state["x"].tolist(), [float(state["step"])] * 100)
        self.assertEqual(checkpointer.last_load.step, state["step"])
        return state["step"]

    def test_a_kill_at_any_moment_leaves_a_step(self):
        found = set()
        self.save(10)
        # Of a save with more ranks.
        with open(os.path.join(self.folder, "last", "__7_0.distcp"), "w"):
            pass
        before = tempfile.mkdtemp(prefix="flash-")
        self.addCleanup(shutil.rmtree, before)
        shutil.copytree(self.folder, before, dirs_exist_ok=True)
        for number in crashes(lambda: self.save(20)):
            step = self.load()
            found.add(step)
            self.assertEqual(self.load(), step, number)
            shutil.rmtree(self.folder)
            shutil.copytree(before, self.folder)
        self.assertEqual(found, {10, 20})
        self.assertEqual(self.load(), 20)
        self.assertEqual(sorted(os.listdir(self.folder)), [".dlrover", "dlrover_latest.txt", "last"])
        self.assertEqual(sorted(os.listdir(os.path.join(self.folder, "last"))), [".metadata", "__0_0.distcp"])


@needs_torch
class OneRank(ClientTest):
    def test_a_saver_that_goes_leaves_the_disk(self):
        from dlrover_run.flash_checkpoint import FsdpShardCheckpointer

        saver = self.reference()
        checkpointer = FsdpShardCheckpointer(self.folder, on_error="raise")
        for step in (1, 2, 3):
            self.assertTrue(checkpointer.save_checkpoint(step, {"step": step, "x": torch.ones(100)}))
            # For good, after the first save.
            saver.stop()
        self.assertSaid("checkpoints are written to disk by the training process")
        self.assertEqual(sorted(os.listdir(self.folder)), [".dlrover", "2", "3", "dlrover_latest.txt"])


@needs_torch
class Disagreements(ClientTest):
    def test_ranks_with_different_steps_load_from_disk(self):
        saver = self.reference()
        ranks("fsdp.py", self.folder, "2", "save", "2")
        words, ends = ranks("fsdp.py", self.folder, "2", "save", "2", DLROVER_CKPT_SOCK=saver.address)
        self.assertEqual(words[-1][1], "2", ends)
        # Rank 1 has an older step than rank 0: as after a kill between two commits.
        saver.shards[(self.folder, 1)].newest().state = "empty"
        words, ends = ranks("fsdp.py", self.folder, "2", "load", DLROVER_CKPT_SOCK=saver.address)
        self.assertEqual(words[-1][:3], ["loaded", "disk", "2"], ends)

    def test_one_rank_without_memory_makes_all_write_alone(self):
        large, small = self.reference(), self.reference(allowance=1)
        words, ends = ranks(
            "fsdp.py",
            self.folder,
            "2",
            "save",
            "2",
            of_rank={0: {"DLROVER_CKPT_SOCK": large.address}, 1: {"DLROVER_CKPT_SOCK": small.address}},
        )
        self.assertEqual([word[1] for word in words[:2]], ["True", "True"], ends)
        self.assertIn("rank 1: too large; give the container more memory, or raise --flash-ckpt-memory (no_memory)", ends[0][2])
        self.assertTrue(os.path.exists(os.path.join(self.folder, "2", ".metadata")))
        self.assertEqual(large.shards[(self.folder, 0)].commits, [])

    def test_a_step_without_the_files_of_a_rank_does_not_count(self):
        ranks("fsdp.py", self.folder, "2", "save", "1")
        _, ends = ranks("fsdp.py", self.folder, "2", "save", "1", "lose")
        for _, out, error in ends:
            result = next(line for line in out.splitlines() if line.startswith("result"))
            self.assertIn("result False step 2 is not saved: it could not be written to disk: ", result, error)
            self.assertIn("a file of rank 1 is not there: cannot read %s/2.dlrover-tmp-" % self.folder, result)
            self.assertIn("must be on a file system that all nodes share", result)
        self.assertEqual(sorted(os.listdir(self.folder)), [".dlrover", "1", "dlrover_latest.txt"])
        self.assertEqual(os.listdir(os.path.join(self.folder, ".dlrover")), ["1.json"])
        words, ends = ranks("fsdp.py", self.folder, "2", "load")
        self.assertEqual(words[-1][:3], ["loaded", "disk", "1"], ends)

    def test_a_rank_that_does_not_save_is_an_error_in_time(self):
        saver = self.reference()
        began = time.monotonic()
        words, ends = ranks("fsdp.py", self.folder, "2", "lonely", DLROVER_CKPT_SOCK=saver.address, SAVE_TIMEOUT="3")
        self.assertEqual([word[1] for word in words], ["False", "True"], ends)
        self.assertIn("rank 1 did not take part in the checkpoint within 3 s", words[0][2] + words[0][3])
        self.assertLess(time.monotonic() - began, 120)

    def test_a_rank_whose_keys_change_alone_does_not_wait_as_long_again(self):
        saver = self.reference()
        _, ends = ranks("fsdp.py", self.folder, "2", "grow", DLROVER_CKPT_SOCK=saver.address, SAVE_TIMEOUT="12")
        first, second = ([line.split(" ", 2)[1:] for line in out.splitlines()] for _, out, _ in ends)
        self.assertEqual([result for result, _ in first], ["True"] * 4, ends)
        self.assertEqual([result for result, _ in second], ["True", "False", "False", "True"], ends)
        for (_, error), seconds in zip(second[1:3], (12, 10)):
            self.assertIn("the state of rank 1 has other names, types or shapes than before", error)
            self.assertIn("rank 0 sent no decision for the checkpoint within %d s" % seconds, error)

    def test_a_rank_that_loses_its_connection_does_not_hold_the_others(self):
        saver, other = self.reference(), self.reference()
        other.faults["commit"] = "close"
        _, ends = ranks(
            "fsdp.py",
            self.folder,
            "2",
            "save",
            "2",
            of_rank={0: {"DLROVER_CKPT_SOCK": saver.address}, 1: {"DLROVER_CKPT_SOCK": other.address}},
        )
        self.assertEqual([line.split()[1] for line in ends[0][1].splitlines()[:2]], ["True", "True"], ends)
        self.assertEqual([line.split()[1] for line in ends[1][1].splitlines()[:2]], ["False", "True"], ends)
        self.assertIn("the saver closed the connection", ends[1][2])

    def of_two_savers(self, saver, other):
        return {0: {"DLROVER_CKPT_SOCK": saver.address}, 1: {"DLROVER_CKPT_SOCK": other.address}}

    def test_after_the_loss_of_a_saver_for_good_all_ranks_write_alone(self):
        saver, other = self.reference(), self.reference()
        other.faults["commit"] = "die"
        _, ends = ranks("fsdp.py", self.folder, "2", "save", "4", of_rank=self.of_two_savers(saver, other))
        results = [[line.split()[1] for line in out.splitlines() if line.startswith("result")] for _, out, _ in ends]
        # At the first one rank 0 did not know it yet.
        self.assertEqual(results, [["True"] * 4, ["False"] + ["True"] * 3], ends)
        self.assertIn("rank 1: cannot connect to the saver", ends[0][2])
        self.assertIn("checkpoints are written to disk by the training process", ends[0][2])
        self.assertEqual(sorted(os.listdir(self.folder)), [".dlrover", "2", "3", "4", "dlrover_latest.txt"])
        words, ends = ranks("fsdp.py", self.folder, "2", "load")
        self.assertEqual(words[-1][:3], ["loaded", "disk", "4"], ends)

    def test_a_rank_that_is_late_at_the_save_that_fails_does_not_wait(self):
        saver, other = self.reference(), self.reference()
        commit = other._commit

        def dying(request, *arguments):
            if request["step"] == 2:
                other.faults["commit"] = "die"
            return commit(request, *arguments)

        other._commit = dying
        of_rank = self.of_two_savers(saver, other)
        _, ends = ranks("fsdp.py", self.folder, "2", "late", of_rank=of_rank, SAVE_TIMEOUT="8")
        results = [[line.split()[1] for line in out.splitlines() if line.startswith("result")] for _, out, _ in ends]
        self.assertEqual(results, [["True"] * 4, ["True", "False", "True", "True"]], ends)
        self.assertEqual(sorted(os.listdir(self.folder)), [".dlrover", "3", "4", "dlrover_latest.txt"])

    def test_a_save_to_memory_that_fails_is_told_to_all_too(self):
        saver, other = self.reference(), self.reference()
        other.faults["commit"] = "die"
        of_rank = self.of_two_savers(saver, other)
        _, ends = ranks("fsdp.py", self.folder, "2", "save", "2", "memory", "disk", "1", of_rank=of_rank)
        results = [[line.split()[1] for line in out.splitlines() if line.startswith("result")] for _, out, _ in ends]
        self.assertEqual(results, [["True", "True", "True"], ["False", "False", "True"]], ends)
        words, ends = ranks("fsdp.py", self.folder, "2", "load")
        self.assertEqual(words[-1][:3], ["loaded", "disk", "3"], ends)

    def test_a_refusal_of_memory_is_not_for_ever(self):
        saver, other = self.reference(), self.reference()
        other.faults["alloc"] = "no memory"
        _, ends = ranks("fsdp.py", self.folder, "2", "save", "3", of_rank=self.of_two_savers(saver, other))
        for _, out, error in ends:
            self.assertEqual([line.split()[1] for line in out.splitlines()[:3]], ["True"] * 3, error)
        for rank, each in enumerate((saver, other)):
            commits = [commit["step"] for commit in each.shards[(self.folder, rank)].commits]
            self.assertEqual(commits, [2, 3], ends)
        self.assertTrue(os.path.exists(os.path.join(self.folder, "1", ".metadata")))

    def test_a_fault_of_one_rank_is_told_by_all(self):
        saver, other = self.reference(), self.reference()
        other.errors["alloc"] = "stale_round", {}
        words, ends = ranks(
            "fsdp.py",
            self.folder,
            "2",
            "save",
            "1",
            of_rank={0: {"DLROVER_CKPT_SOCK": saver.address}, 1: {"DLROVER_CKPT_SOCK": other.address}},
        )
        self.assertIn("rank 1: the test says so (stale_round)", ends[0][2])
        self.assertIn("rank 1: the test says so (stale_round)", ends[1][2])

    def test_nothing_loads_is_said_by_all(self):
        saver, other = self.reference(), self.reference()
        other.errors["load"] = "nothing_loads", {}
        _, ends = ranks("fsdp.py", self.folder, "2", "load", of_rank=self.of_two_savers(saver, other))
        for _, _, error in ends:
            self.assertRegex(error, r"errors\.NothingLoads: .*rank 1: the test says so \(nothing_loads\)")

    def test_a_changed_byte_in_one_rank_s_file_is_found(self):
        ranks("fsdp.py", self.folder, "2", "save", "2")
        with open(os.path.join(self.folder, "2", "__1_0.distcp"), "r+b") as file:
            file.seek(2000)
            byte = file.read(1)
            file.seek(2000)
            file.write(bytes([byte[0] ^ 1]))
        words, ends = ranks("fsdp.py", self.folder, "2", "load")
        self.assertEqual(words[-1][:3], ["loaded", "disk", "1"], ends)
        self.assertIn("was changed after it was written", ends[0][2])


if __name__ == "__main__":
    unittest.main()
