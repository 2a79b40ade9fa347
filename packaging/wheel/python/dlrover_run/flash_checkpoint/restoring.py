"""A state from a slot, without a copy of its large tensors."""

import json
import os
import weakref

from . import header, tree
from .mapping import Mapping

# Smaller tensors are copied at once: less work than to look after their pages.
_LARGEST_CLONE = 1 << 16


class Restored:
    """A state that was read from a slot, and the pin on the slot while tensors of it are in use.

    Large tensors lie in a private mapping of the slot: training never changes the slot. But the slot must not change
    either, because pages that were not written show what it holds: `detach` gives them memory of their own. Where the
    kernel cannot do that beside training, all tensors are copied at once.
    """

    def __init__(self, number, size, descriptor, step=None, without=()):
        """Reads slot `number`; `descriptor` is closed. Raises header.Damaged unless it is whole, and of `step`.

        Of a state that is a dict, the keys of `without` are not read.
        """
        self.slot = number
        # Those by which it was loaded, to be told when the slot is not read any more.
        self.connections = []
        # Called when that is so: in any thread, in the middle of anything. Must neither wait nor lock.
        self.on_unused = None
        # By where they are: (weak reference to the bytes of a tensor, how many). They go with the tensor.
        self._pieces = {}
        # All pieces are there.
        self._is_complete = False
        try:
            self._mapping = Mapping(descriptor, size, private=True)
        except OSError as error:
            raise header.Damaged(str(error))
        finally:
            os.close(descriptor)
        slot = self._mapping.bytes()
        self.body = header.read(slot)
        # Before Linux 5.14 not; tried on the page of the header.
        self._can_detach = self._mapping.populate(0, 1)
        if step is not None and self.body.step != step:
            raise header.Damaged("the slot holds step %d; expected %d" % (self.body.step, step))
        try:
            self._whole = self._state(slot, without)
            self._is_complete = True
            if not self._pieces:
                self._mapping = None
        except header.Damaged:
            raise
        except Exception as error:
            # Pickles raise anything.
            raise header.Damaged("the state cannot be read: %s: %s" % (type(error).__name__, error))

    def is_in_use(self):
        """Whether a tensor of it lives that shows the slot."""
        return bool(self._pieces)

    def detach(self):
        """Gives all tensors that live memory of their own. From then on the slot may change. For any thread."""
        mapping = self._mapping
        for start, (reference, size) in list(self._pieces.items()):
            piece = reference()
            if piece is not None and not mapping.populate(start, size):
                # It could before, so memory may be short.
                _write_each_page(memoryview(piece).cast("B"))
            del piece
            # Now only: the slot must not be given back before.
            self._gone(start)

    def take_state(self):
        """The state, once: what keeps it here would keep the slot."""
        state, self._whole = self._whole, None
        return state

    def _gone(self, start):
        self._pieces.pop(start, None)
        if not self._pieces and self._is_complete:
            # Pages that were written are memory of this process: they go with the last tensor.
            self._mapping = None
            on_unused, self.on_unused = self.on_unused, None
            if on_unused is not None:
                on_unused()

    def _state(self, slot, without):
        body = self.body
        meta = json.loads(slot[body.meta_off : body.meta_off + body.meta_len].tobytes().decode())
        skeleton = slot[body.skeleton_off : body.skeleton_off + body.skeleton_len]

        def odd_leaf(offset, length):
            if not 0 <= offset <= offset + length <= len(skeleton):
                raise header.Damaged(
                    "a pickle is at byte %d and has %d bytes, beyond the end of the skeleton" % (offset, length)
                )
            return skeleton[offset : offset + length].tobytes()

        tensors = self._tensors(meta["tensors"]) if meta["tensors"] else []
        whole = meta["tree"]
        if without:
            whole = {"d": [pair for pair in whole["d"] if pair[0] not in without]}
        return tree.unflatten(whole, tensors, odd_leaf)

    def _tensors(self, rows):
        # Not before there is a tensor.
        import torch

        from . import dtypes

        data = self.body.data_off
        whole = torch.frombuffer(self._mapping.array, dtype=torch.uint8)[data : data + self.body.data_len]
        typed, storages, tensors = {}, {}, []
        for _, name, shape, offset, size, *shared in rows:
            if name not in typed:
                if name not in dtypes.named:
                    raise header.Damaged("this torch has no dtype %s; use the version that saved the state" % name)
                item = dtypes.item_size(dtypes.named[name])
                typed[name] = item, whole[: len(whole) // item * item].view(dtypes.named[name])
            item, elements = typed[name]
            if offset < 0 or size < 0 or offset + size > self.body.data_len or offset % item:
                raise header.Damaged(
                    "a tensor is at byte %d and has %d bytes, beyond the data (%d bytes)"
                    % (offset, size, self.body.data_len)
                )
            if len(shared) < 2 and self._is_copied(size):
                # Most tensors of large models are small, and copied at once.
                tensors.append(elements[offset // item : (offset + size) // item].clone().view(shape))
                continue
            # Without a number it has a storage of its own.
            number = shared[0] if shared else -1 - len(tensors)
            if number not in storages:
                storages[number] = self._storage(torch, whole, offset, size)
            first, strides = shared[1:3] if len(shared) > 1 else (0, dtypes.contiguous_strides(shape))
            # torch refuses what is beyond the storage.
            tensors.append(storages[number].view(dtypes.named[name]).as_strided(shape, strides, first))
        return tensors

    def _storage(self, torch, whole, offset, size):
        if self._is_copied(size):
            return whole[offset : offset + size].clone()
        start = self.body.data_off + offset
        piece = self._mapping.piece(start, size)
        self._pieces[start] = weakref.ref(piece, lambda _: self._gone(start)), size
        return torch.frombuffer(piece, dtype=torch.uint8)

    def _is_copied(self, size):
        return size <= _LARGEST_CLONE or not self._can_detach


def _write_each_page(piece):
    # A write of another thread between the read and the write of a byte is lost.
    piece[::4096] = bytes(piece[::4096])
    piece[-1] = piece[-1]
