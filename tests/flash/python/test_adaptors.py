"""Frameworks with checkpoints in memory; each test needs its framework. With torch."""

import importlib.util
import os
import shutil
import subprocess
import sys
import unittest

from support import HERE, ClientTest, environment, lines, needs_torch, torch
from test_fsdp import ranks


def needs(*names):
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, "no " + " and no ".join(missing))


def run(program, *arguments, **variables):
    command = [sys.executable, os.path.join(HERE, "programs", program)] + list(arguments)
    done = subprocess.run(command, env=environment(OMP_NUM_THREADS="1", **variables), capture_output=True, timeout=600)
    return [line.split() for line in lines(done.stdout.decode())], done


@needs_torch
class Unpacked(ClientTest):
    def read(self):
        with open(os.path.join(self.folder, "a", "text")) as file:
            return torch.load(os.path.join(self.folder, "a", "tensor.pt")).tolist(), file.read()

    def test_files_of_another_save_are_replaced(self):
        from dlrover_run.flash_checkpoint import files

        for number in (1, 2):
            files.unpack(self.folder, {"a/tensor.pt": torch.full((2,), number), "a/text": "of %d" % number})
            self.assertEqual(self.read(), ([number] * 2, "of %d" % number))

    def test_all_files_are_of_one_save_when_one_cannot_be_written(self):
        from dlrover_run.flash_checkpoint import files

        files.unpack(self.folder, {"a/tensor.pt": torch.zeros(2), "a/text": "of 1"})
        with self.assertRaisesRegex(Exception, "pickle"):
            files.unpack(self.folder, {"a/text": "of 2", "a/tensor.pt": lambda: None})
        self.assertEqual(self.read(), ([0.0] * 2, "of 1"))
        self.assertEqual(sorted(os.listdir(os.path.join(self.folder, "a"))), ["tensor.pt", "text"])


@needs_torch
class Adaptors(ClientTest):
    @needs("transformers")
    def test_transformers(self):
        self.reference()
        for address in (os.environ["DLROVER_CKPT_SOCK"], ""):
            folder, other = os.path.join(self.folder, address, "a"), os.path.join(self.folder, address, "b")
            whole, done = run("hf.py", folder, "23", DLROVER_CKPT_SOCK=address)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(whole[0], ["found", "False", "none"])
            words, done = run("hf.py", other, "13", "die", DLROVER_CKPT_SOCK=address)
            self.assertEqual(done.returncode, -9, done.stderr)
            words, done = run("hf.py", other, "23", DLROVER_CKPT_SOCK=address)
            self.assertEqual(words[0], ["found", "checkpoint-10", "memory" if address else "disk"], done.stderr)
            # As if it had never been killed.
            self.assertEqual(words[-1], whole[-1], done.stderr)

    @needs("transformers")
    def test_transformers_takes_no_file_of_another_save(self):
        one, other = os.path.join(self.folder, "one"), os.path.join(self.folder, "other")
        whole, done = run("hf.py", one, "20")
        self.assertEqual(done.returncode, 0, done.stderr)
        run("hf.py", other, "15")
        # As of a run before, that has saved the same step; the second one is what transformers itself writes.
        earlier = torch.load(os.path.join(one, "checkpoint-15", "flash_checkpoint.pt"), weights_only=False)
        from safetensors.torch import save_file

        weights = {name: tensor + 1 for name, tensor in earlier["pytorch_model.bin"].items()}
        torch.save(weights, os.path.join(other, "checkpoint-15", "pytorch_model.bin"))
        save_file(weights, os.path.join(other, "checkpoint-15", "model.safetensors"))
        words, done = run("hf.py", other, "20")
        self.assertEqual(words[0], ["found", "checkpoint-15", "disk"], done.stderr)
        self.assertEqual(words[-1], whole[-1], done.stderr)

    @needs("transformers")
    def test_transformers_replaces_no_weights_of_others(self):
        self.reference()
        address = os.environ["DLROVER_CKPT_SOCK"]
        run("hf.py", self.folder, "5", DLROVER_CKPT_SOCK=address)
        folder = os.path.join(self.folder, "checkpoint-5")
        for name in ("model.safetensors", "pytorch_model.bin"):
            shutil.rmtree(folder)
            os.mkdir(folder)
            path = os.path.join(folder, name)
            with open(path, "w") as file:
                file.write("of another program")
            _, done = run("hf.py", self.folder, "10", DLROVER_CKPT_SOCK=address)
            self.assertIn("its %s would be replaced; move the directory away" % name, done.stderr.decode())
            with open(path) as file:
                self.assertEqual(file.read(), "of another program")
            self.assertEqual(os.listdir(folder), [name])
        # Where there is none, the checkpoint makes it; this is then known.
        shutil.rmtree(folder)
        words, done = run("hf.py", self.folder, "5", DLROVER_CKPT_SOCK=address)
        self.assertEqual(words[0], ["found", "checkpoint-5", "memory"], done.stderr)
        self.assertTrue(os.path.exists(os.path.join(folder, ".flash_checkpoint")))

    @needs("transformers")
    def test_transformers_deletes_only_what_it_has_written(self):
        # Of the Trainer of transformers, and of a run before.
        for name in ("checkpoint-1", "checkpoint-2", "checkpoint-3"):
            os.mkdir(os.path.join(self.folder, name))
        for name in (".flash_checkpoint", "config.json"):
            with open(os.path.join(self.folder, "checkpoint-3", name), "w"):
                pass
        _, done = run("hf.py", self.folder, "20")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = sorted(name for name in os.listdir(self.folder) if name.startswith("checkpoint-"))
        self.assertEqual(found, ["checkpoint-1", "checkpoint-15", "checkpoint-2", "checkpoint-20"])

    @needs("transformers")
    def test_transformers_cannot_load_the_best_model(self):
        _, done = run("hf.py", self.folder, "10", "best")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("ValueError: load_best_model_at_end is True, but", done.stderr.decode())

    @needs("transformers")
    def test_transformers_with_two_ranks(self):
        self.reference()
        address = os.environ["DLROVER_CKPT_SOCK"]
        words, ends = ranks("hf.py", self.folder, "10", DLROVER_CKPT_SOCK=address)
        self.assertEqual(words[-1][:2], ["trained", "10"], ends)
        words, ends = ranks("hf.py", self.folder, "15", DLROVER_CKPT_SOCK=address)
        self.assertEqual(words[0], ["found", "checkpoint-10", "memory"], ends)
        self.assertEqual(words[-1][:2], ["trained", "15"], ends)

    @needs("lightning")
    def test_lightning(self):
        self.reference()
        for address in (os.environ["DLROVER_CKPT_SOCK"], ""):
            folder = os.path.join(self.folder, address or "alone")
            words, done = run("lightning_fit.py", folder, "10", DLROVER_CKPT_SOCK=address)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(words[0], ["found", "none", "None"])
            again, done = run("lightning_fit.py", folder, "20", DLROVER_CKPT_SOCK=address)
            self.assertEqual(again[0], ["found", "memory" if address else "disk", "10"], done.stderr)
            self.assertEqual(again[1], ["began"] + words[-1][1:], done.stderr)
            self.assertEqual(again[2][:2], ["trained", "20"], done.stderr)

    @needs("deepspeed", "ninja")
    def test_deepspeed(self):
        self.reference()
        for address in (os.environ["DLROVER_CKPT_SOCK"], ""):
            folder, other = os.path.join(self.folder, address, "a"), os.path.join(self.folder, address, "b")
            whole, ends = ranks("deepspeed_train.py", folder, "8", DLROVER_CKPT_SOCK=address)
            self.assertEqual(whole[-1][:2], ["trained", "8"], ends)
            words, ends = ranks("deepspeed_train.py", other, "4", DLROVER_CKPT_SOCK=address)
            words, ends = ranks("deepspeed_train.py", other, "4", DLROVER_CKPT_SOCK=address)
            found = [word for word in words if word[0] == "found"][0]
            self.assertEqual(found, ["found", "memory" if address else "disk", "4", "4"], ends)
            self.assertEqual(words[-1], whole[-1], ends)


if __name__ == "__main__":
    unittest.main()
