"""Copies past the processor's caches are right at every size and place, and nothing is lost without them."""

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from support import needs_torch, torch

from dlrover_run.flash_checkpoint import mapping

if torch is not None:
    from dlrover_run.flash_checkpoint import copying, streaming

# The alignment of tensors in a slot, and bytes around each copy that have to stay as they are.
ALIGNMENT, FENCE = 64, 64


@contextlib.contextmanager
def without_code():
    streaming._function.cache_clear()
    with mock.patch.object(mapping, "map_code", return_value=None):
        yield
    streaming._function.cache_clear()


def pairs(sizes, source_offset):
    """Random bytes of these sizes, each at an offset of its memory, and targets in one memory with fences between."""
    sources, targets, first = [], [], FENCE
    whole = torch.full((sum(sizes) + (len(sizes) + 1) * (FENCE + ALIGNMENT) + FENCE,), 7, dtype=torch.uint8)
    first -= whole.data_ptr() % ALIGNMENT
    for size in sizes:
        sources.append(torch.randint(0, 256, (size + source_offset,), dtype=torch.uint8)[source_offset:])
        targets.append(whole[first : first + size])
        first += -(-(size + FENCE) // ALIGNMENT) * ALIGNMENT
    return whole, targets, sources


@needs_torch
class Streaming(unittest.TestCase):
    def setUp(self):
        least = mock.patch.object(streaming, "_LEAST_BYTES", 64)
        least.start()
        self.addCleanup(least.stop)

    @unittest.skipUnless(platform.machine() == "x86_64", "for x86-64")
    def test_it_is_used_here(self):
        whole, targets, sources = pairs([64, 4096], 0)
        self.assertEqual(streaming.copy(targets, sources), ([], []))

    def test_every_size_and_place(self):
        sizes = list(range(0, 260)) + [4095, 4096, 4097, 16383, 16384, 16448, 3 * 16384 + 4096 + 70, (1 << 20) + 33]
        for offset in (0, 1, 16, 63):
            whole, targets, sources = pairs(sizes, offset)
            expected = whole.clone()
            for target, source in zip(targets, sources):
                first = target.storage_offset()
                expected[first : first + len(source)] = source
            copying._copy(targets, sources)
            self.assertTrue(torch.equal(whole, expected), offset)

    def test_what_is_not_plain_memory_is_left_to_torch(self):
        numbers = torch.randn(64, 64, dtype=torch.complex64)
        for source in (numbers.t(), numbers.conj(), numbers.conj().imag, numbers[:, ::2]):
            target = torch.zeros(source.shape, dtype=source.dtype)
            rest = streaming.copy([target], [source])
            self.assertEqual([len(each) for each in rest], [1, 1])
            copying._copy([target], [source])
            self.assertTrue(torch.equal(target, source))
        rounded = torch.zeros(64, dtype=torch.float16)
        copying._copy([rounded], [torch.ones(64)])
        self.assertTrue(torch.equal(rounded, torch.ones(64, dtype=torch.float16)))

    def test_a_target_that_is_not_aligned_is_left_to_torch(self):
        memory = torch.zeros(300, dtype=torch.uint8)
        first = -memory.data_ptr() % 16 + 1
        target, source = memory[first : first + 256], torch.randint(0, 256, (256,), dtype=torch.uint8)
        copying._copy([target], [source])
        self.assertTrue(torch.equal(target, source))

    def test_without_it_torch_copies(self):
        with without_code():
            whole, targets, sources = pairs([64, 4096], 0)
            self.assertEqual([len(each) for each in streaming.copy(targets, sources)], [2, 2])
            copying._copy(targets, sources)
        for target, source in zip(targets, sources):
            self.assertTrue(torch.equal(target, source))

    @unittest.skipUnless(shutil.which("as") and platform.machine() == "x86_64", "needs the assembler of x86-64")
    def test_the_code_is_what_its_text_says(self):
        with tempfile.TemporaryDirectory() as folder:
            text, result, plain = (os.path.join(folder, name) for name in ("code.s", "code.o", "code"))
            with open(text, "w") as file:
                file.write(".intel_syntax noprefix\n%s\n" % "\n".join(line for _, line in streaming.CODE))
            subprocess.run(["as", "-o", result, text], check=True)
            subprocess.run(["objcopy", "-O", "binary", "-j", ".text", result, plain], check=True)
            with open(plain, "rb") as file:
                assembled = file.read()
        self.assertEqual(assembled.hex(), "".join(code for code, _ in streaming.CODE))


class Refused(unittest.TestCase):
    @unittest.skipUnless(sys.platform == "linux", "for Linux")
    def test_a_page_that_is_refused_is_none(self):
        for name in ("memfd_create", "write"):
            with mock.patch.object(os, name, side_effect=OSError(1, "Operation not permitted"), create=True):
                self.assertIsNone(mapping.map_code(b"\xc3"))
        with mock.patch.object(mapping, "_libc") as libc:
            libc.mmap.return_value = mapping._MAP_FAILED
            self.assertIsNone(mapping.map_code(b"\xc3"))


if __name__ == "__main__":
    unittest.main()
