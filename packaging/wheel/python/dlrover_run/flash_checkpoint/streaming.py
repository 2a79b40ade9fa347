"""Copies large tensors past the processor's caches: in 0.64 of the time of a memcpy (benches/flash/saves.py).

An ordinary store first reads the line of the cache that it overwrites; a non-temporal one does not. glibc's memcpy has such stores for sizes near that of the last cache and above, torch has none, and
neither can be asked for them. So this is the one piece of machine code in this package: a loop without calls, from a
read-only page. It is for x86-64; elsewhere, and where such a page is refused (SELinux), torch copies.
"""

import ctypes
import functools
import platform
import sys

from . import mapping

# Bytes of a tensor. Shorter ones are not worth the look at them.
_LEAST_BYTES = 256 << 10

# What one turn of the loop copies, and what the target has to be aligned to.
_STRIDE, _ALIGNMENT = 64, 16

# void copy(const uint64_t rows[][3], size_t count): each row is target, source, and bytes, which are multiples of
# _STRIDE and not 0. By the calling convention of System V; no register that a caller keeps is changed. A prefetch
# beyond the end of the source does not fault. The fence: whoever is told that the copy is over sees all of it.
CODE = (
    ("f30f1efa", "endbr64"),
    ("4c8b07", "row: mov r8, [rdi]"),
    ("4c8b4f08", "mov r9, [rdi+8]"),
    ("488b5710", "mov rdx, [rdi+16]"),
    ("4883c718", "add rdi, 24"),
    ("410f188100040000", "chunk: prefetchnta [r9+1024]"),
    ("410f1001", "movups xmm0, [r9]"),
    ("410f104910", "movups xmm1, [r9+16]"),
    ("410f105120", "movups xmm2, [r9+32]"),
    ("410f105930", "movups xmm3, [r9+48]"),
    ("410f2b00", "movntps [r8], xmm0"),
    ("410f2b4810", "movntps [r8+16], xmm1"),
    ("410f2b5020", "movntps [r8+32], xmm2"),
    ("410f2b5830", "movntps [r8+48], xmm3"),
    ("4983c140", "add r9, 64"),
    ("4983c040", "add r8, 64"),
    ("4883ea40", "sub rdx, 64"),
    ("75c4", "jne chunk"),
    ("48ffce", "dec rsi"),
    ("75b0", "jne row"),
    ("0faef8", "sfence"),
    ("c3", "ret"),
)


def copy(targets, sources):
    """Copies those of `sources` that it can to `targets`, in one call; returns the rest, as two lists."""
    function = _function()
    if function is None:
        return targets, sources
    rows, rest = [], ([], [])
    for target, source in zip(targets, sources):
        size = source.numel() * source.element_size()
        to, origin = target.data_ptr(), source.data_ptr()
        if size < _LEAST_BYTES or to % _ALIGNMENT or not _is_same_memory(target, source):
            rest[0].append(target)
            rest[1].append(source)
            continue
        whole = size - size % _STRIDE
        rows += (to, origin, whole)
        ctypes.memmove(to + whole, origin + whole, size - whole)
    if rows:
        function((ctypes.c_uint64 * len(rows))(*rows), len(rows) // 3)
    return rest


def _is_same_memory(target, source):
    return (
        source.dtype == target.dtype
        and source.shape == target.shape
        and source.is_contiguous()
        and target.is_contiguous()
        # Conjugated or negated when it is read; such tensors are there since torch 1.10.
        and not any([getattr(source, name)() for name in ("is_conj", "is_neg") if hasattr(source, name)])
    )


@functools.lru_cache(maxsize=None)
def _function():
    if sys.platform != "linux" or platform.machine() != "x86_64" or sys.maxsize < 1 << 32:
        return None
    address = mapping.map_code(bytes.fromhex("".join(code for code, _ in CODE)))
    # Other Python threads run meanwhile, as with every call of this type.
    return address and ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)(address)
