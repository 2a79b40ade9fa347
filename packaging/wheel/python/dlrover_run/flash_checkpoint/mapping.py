"""Memory files in the address space of this process."""

import ctypes
import mmap
import os
import weakref

_PROT_READ_WRITE, _PROT_READ_EXECUTE = 0x1 | 0x2, 0x1 | 0x4
_MAP_SHARED, _MAP_PRIVATE = 0x1, 0x2
_MADV_DONTFORK = 10
_MADV_POPULATE_WRITE = 23

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FAILED = ctypes.c_void_p(-1).value


class Mapping:
    """`size` bytes of the file `descriptor`, which stays the caller's.

    Shared: what is written is in the file, and forked children do not have the mapping. Private: the file never
    changes; pages that were not written show what the file has now. Unmapped when `array`, and all that was made of it,
    is gone. Raises OSError when the file is shorter, or the mapping is not allowed.
    """

    def __init__(self, descriptor, size, private=False):
        found = os.fstat(descriptor).st_size
        if size <= 0 or found < size:
            raise OSError("a memory file of the saver has %d bytes; expected %d" % (found, size))
        kind = _MAP_PRIVATE if private else _MAP_SHARED
        address = _libc.mmap(None, size, _PROT_READ_WRITE, kind, descriptor, 0)
        if address == _MAP_FAILED:
            error = ctypes.get_errno()
            raise OSError(error, "%d bytes of the saver's memory cannot be mapped: %s" % (size, os.strerror(error)))
        self.address = address
        self.size = size
        self.array = (ctypes.c_ubyte * size).from_address(address)
        # Called with the registration for accelerators when it is undone: see `accelerator`.
        self.before_unmap = []
        # Not at exit: threads may still copy.
        weakref.finalize(self.array, _unmap, os.getpid(), address, size, self.before_unmap).atexit = False
        if not private:
            # A child that is forked in the middle of a copy would double its pages, and keep them alive.
            _libc.madvise(address, size, _MADV_DONTFORK)

    def bytes(self):
        """All of it as writable bytes."""
        return memoryview(self.array).cast("B")

    def populate(self, start, length):
        """Gives the pages of a range memory of their own now; their content stays, also under other threads' writes.

        False when this kernel cannot (before Linux 5.14).
        """
        first = start - start % mmap.PAGESIZE
        end = min(self.size, start + length)
        # The kernel rounds the length up to whole pages.
        return end <= first or _libc.madvise(self.address + first, end - first, _MADV_POPULATE_WRITE) == 0

    def piece(self, start, length):
        """A part as an object of its own, which keeps the mapping alive."""
        piece = (ctypes.c_ubyte * length).from_address(self.address + start)
        piece.mapping = self.array
        return piece


def map_code(code):
    """The address of a page with this machine code, which stays; None where that is not allowed.

    The page was never writable: of a memory file, not of memory whose protection changes.
    """
    try:
        descriptor = os.memfd_create("flash-checkpoint-code")
    except (AttributeError, OSError):
        return None
    try:
        if os.write(descriptor, code) != len(code):
            return None
        address = _libc.mmap(None, len(code), _PROT_READ_EXECUTE, _MAP_PRIVATE, descriptor, 0)
        return None if address == _MAP_FAILED else address
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _unmap(process, address, size, before):
    # In a forked child another mapping may be there.
    if os.getpid() == process:
        for undo in before:
            undo()
        _libc.munmap(address, size)
