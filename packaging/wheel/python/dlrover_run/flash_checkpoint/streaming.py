"""Copies large tensors past the processor's caches: in 0.63 of the time of a memcpy (benches/flash/saves.py).

An ordinary store first reads the line of the cache that it overwrites; a non-temporal one does not. glibc's memcpy has
such stores for sizes near that of the last cache and above, torch has none, and neither can be asked for them. So this
is the one piece of machine code in this package: loops without calls, from a read-only page. It is for x86-64;
elsewhere, and where such a page is refused (SELinux), torch copies.

A processor reads ahead within a page only, and one page keeps few reads under way. So four pages are copied side by
side, a line of each in turn, as glibc does for its largest sizes. One page after the other with prefetches took 1.12 of
the time of a memcpy on the processor of docs/measured.md, by the same bench.
"""

import ctypes
import functools
import platform
import sys

from . import mapping

# Bytes of a tensor. Shorter ones are not worth the look at them.
_LEAST_BYTES = 256 << 10

# What one turn of the innermost loop copies, and what the target has to be aligned to.
_STRIDE, _ALIGNMENT = 64, 16

# void copy(const uint64_t rows[][3], size_t count): each row is target, source, and bytes, which are multiples of
# _STRIDE and not 0. A part is four pages of 4096 bytes, or the rest of the row as one. By the calling convention of
# System V; no register that a caller keeps is changed. The fence: whoever is told that the copy is over sees all of it.
CODE = (
    ("f30f1efa", "endbr64"),
    ("4c8b07", "row: mov r8, [rdi]"),
    ("4c8b4f08", "mov r9, [rdi+8]"),
    ("488b5710", "mov rdx, [rdi+16]"),
    ("4883c718", "add rdi, 24"),
    ("b800100000", "part: mov eax, 4096"),
    ("4989d3", "mov r11, rdx"),
    ("4889d1", "mov rcx, rdx"),
    ("48c1e906", "shr rcx, 6"),
    ("4881fa00400000", "cmp rdx, 16384"),
    ("7210", "jb line"),
    ("b800400000", "mov eax, 16384"),
    ("41bb00400000", "mov r11d, 16384"),
    ("b940000000", "mov ecx, 64"),
    ("4531d2", "line: xor r10d, r10d"),
    ("430f100411", "page: movups xmm0, [r9+r10]"),
    ("430f104c1110", "movups xmm1, [r9+r10+16]"),
    ("430f10541120", "movups xmm2, [r9+r10+32]"),
    ("430f105c1130", "movups xmm3, [r9+r10+48]"),
    ("430f2b0410", "movntps [r8+r10], xmm0"),
    ("430f2b4c1010", "movntps [r8+r10+16], xmm1"),
    ("430f2b541020", "movntps [r8+r10+32], xmm2"),
    ("430f2b5c1030", "movntps [r8+r10+48], xmm3"),
    ("4981c200100000", "add r10, 4096"),
    ("4939c2", "cmp r10, rax"),
    ("72c6", "jb page"),
    ("4983c140", "add r9, 64"),
    ("4983c040", "add r8, 64"),
    ("48ffc9", "dec rcx"),
    ("75b6", "jne line"),
    ("4d8d8c0100f0ffff", "lea r9, [r9+rax-4096]"),
    ("4d8d840000f0ffff", "lea r8, [r8+rax-4096]"),
    ("4c29da", "sub rdx, r11"),
    ("0f8575ffffff", "jne part"),
    ("48ffce", "dec rsi"),
    ("0f855dffffff", "jne row"),
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
