"""Where each tensor of a state lies in a slot. The same for all states of the same names, types and shapes."""

import hashlib
import json

from . import header

# Tensors begin at multiples of this many bytes: of files that the saver writes, too.
_ALIGNMENT = 64

_PAGE = 4096

# A tensor with more bytes is copied in parts, by several threads.
_LARGEST_PART = 16 << 20

# Bytes for meta and skeleton at least, so that a state which grows a little still fits.
_SMALLEST_ROOM = 1 << 16


class Copy:
    """One copy from a tensor into a slot.

    Of `flat` copies, `count` elements from element `first` of the tensor's memory on are copied in their order there;
    of the others the whole tensor, in the order of its indices.
    """

    __slots__ = ("index", "flat", "first", "count", "offset", "dtype", "shape", "bytes")

    def __init__(self, index, flat, first, count, offset, dtype, shape):
        self.index, self.flat, self.first, self.count = index, flat, first, count
        self.offset, self.dtype, self.shape = offset, dtype, shape
        self.bytes = count * _item_size(dtype)


class Layout:
    """The layout of `tensors`, which have these `names`; `room` is how many bytes meta and skeleton need now.

    With `keeps_strides` false, every tensor lies in the slot without gaps and in the order of its indices.

    id          a number for the saver: slots of another layout are not used
    data_off    bytes of the slot before the tensors
    data_len    bytes of all tensors with the gaps between
    slot_bytes  the size of a slot
    """

    def __init__(self, names, tensors, keys, room, keeps_strides=True):
        self.keys = keys
        self.copies = []
        self._keeps_strides = keeps_strides
        self._signature = _signature(tensors)
        self._strides = {i: t.stride() for i, t in enumerate(tensors) if not t.is_contiguous()}
        # (tensor, other tensor, bytes between their first elements) of tensors that share memory.
        self._shared = []
        self._end = 0
        rows = [None] * len(tensors)
        self._storages = 0
        for group in _overlapping(tensors):
            self._place_shared(group, names, tensors, rows)
        for index, tensor in enumerate(tensors):
            if rows[index] is None:
                rows[index] = self._place(index, names[index], tensor)
        # Which tensor each copy is of, its bytes, and which copies are flat.
        self.copied = [copy.index for copy in self.copies]
        self.copy_bytes = [copy.bytes for copy in self.copies]
        self.flat = [place for place, copy in enumerate(self.copies) if copy.flat]
        self.table = json.dumps(rows, separators=(",", ":"))
        self.data_len = self._end
        self.data_off = header.LENGTH + _round_up(2 * (room + len(self.table)) + _SMALLEST_ROOM)
        self.slot_bytes = -(-(self.data_off + self.data_len + _ALIGNMENT) // _PAGE) * _PAGE
        identity = hashlib.blake2b(self.table.encode(), digest_size=8)
        identity.update(b"%d" % self.data_off)
        self.id = int.from_bytes(identity.digest(), "little")

    @property
    def room(self):
        """Bytes for meta and skeleton."""
        return self.data_off - header.LENGTH

    def fits(self, flat, needed):
        """Whether a state has this layout and its meta and skeleton, of `needed` bytes with the table, fit."""
        tensors = flat.tensors
        return (
            needed + len(self.table) <= self.room
            and flat.keys == self.keys
            and _signature(tensors) == self._signature
            and all(tensors[i].stride() == strides for i, strides in self._strides.items())
            and all(_distance(tensors, i, j) == distance for i, j, distance in self._shared)
        )

    def _place(self, index, name, tensor):
        shape, dtype = list(tensor.shape), tensor.dtype
        count = tensor.numel()
        row = [name, _name_of(dtype), shape]
        strides = self._strides.get(index)
        reach = _span(shape, strides) if strides else count
        if strides and reach <= count and self._keeps_strides:
            # Without gaps: memory as it is, so that the strides stay too.
            offset, size, storage = self._storage(reach, dtype)
            self._copy_flat(index, 0, reach, offset, dtype)
            return row + [offset, size, storage, 0, list(strides)]
        offset, size, storage = self._storage(count, dtype)
        if strides:
            self.copies.append(Copy(index, False, 0, count, offset, dtype, shape))
        elif count:
            self._copy_contiguous(index, count, offset, dtype, shape)
        return row + [offset, size, storage]

    def _place_shared(self, group, names, tensors, rows):
        """Puts tensors that share memory at one place. `group`: (address, bytes, index), by address."""
        dtype = tensors[group[0][2]].dtype
        item = _item_size(dtype)
        start, base = group[0][0], group[0][2]
        reach = max(address + size for address, size, _ in group) - start
        if (
            any(
                tensors[i].dtype != dtype or (address - start) % item or _is_lazy(tensors[i]) for address, _, i in group
            )
            or not (self._keeps_strides or all(tensors[i].is_contiguous() for _, _, i in group))
            # Views of a large tensor that is not saved itself.
            or reach > 2 * sum(size for _, size, _ in group)
        ):
            return
        offset, size, storage = self._storage(reach // item, dtype)
        for address, _, index in group:
            tensor = tensors[index]
            strides = list(tensor.stride())
            first = (address - start) // item
            row = [names[index], _name_of(dtype), list(tensor.shape), offset, size, storage, first, strides]
            rows[index] = row
            self._shared.append((index, base, address - start))
        self._copy_flat(base, 0, reach // item, offset, dtype)

    def _storage(self, count, dtype):
        offset = self._end
        size = count * _item_size(dtype)
        self._end = -(-(offset + size) // _ALIGNMENT) * _ALIGNMENT
        self._storages += 1
        return offset, size, self._storages - 1

    def _copy_contiguous(self, index, count, offset, dtype, shape):
        if count * _item_size(dtype) > _LARGEST_PART:
            self._copy_flat(index, 0, count, offset, dtype)
        else:
            self.copies.append(Copy(index, False, 0, count, offset, dtype, shape))

    def _copy_flat(self, index, first, count, offset, dtype):
        item = _item_size(dtype)
        most = _LARGEST_PART // item
        for start in range(0, count, most):
            part = min(most, count - start)
            self.copies.append(Copy(index, True, first + start, part, offset + start * item, dtype, (part,)))


# A state without tensors needs no torch.


def _item_size(dtype):
    from . import dtypes

    return dtypes.item_size(dtype)


def _name_of(dtype):
    from . import dtypes

    return dtypes.name_of[dtype]


def _span(shape, strides):
    """Elements from the first to the last one of a tensor, with the gaps between."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))


def _signature(tensors):
    return [(tensor.dtype, tensor.shape, tensor.is_contiguous()) for tensor in tensors]


def _is_lazy(tensor):
    # Its memory holds other values than the tensor.
    return tensor.is_conj() or tensor.is_neg()


def _distance(tensors, index, base):
    if _is_lazy(tensors[index]):
        return None
    return tensors[index].data_ptr() - tensors[base].data_ptr()


def _overlapping(tensors):
    """Groups of tensors that share memory, each sorted by address: (address, bytes, index).

    And a storage: memory that torch did not allocate may be in several of them, and a view is of one.
    """
    ranges = []
    for index, tensor in enumerate(tensors):
        size = _span(tensor.shape, tensor.stride()) * tensor.element_size()
        if size:
            ranges.append(((str(tensor.device), *_storage_of(tensor)), tensor.data_ptr(), size, index))
    ranges.sort()
    group, storage, end = [], None, 0
    for place, address, size, index in ranges:
        if place == storage and address < end:
            group.append((address, size, index))
            end = max(end, address + size)
        else:
            if len(group) > 1:
                yield group
            group, storage, end = [(address, size, index)], place, address + size
    if len(group) > 1:
        yield group


def _storage_of(tensor):
    # Before torch 2.0 storages had types.
    storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
    return storage.data_ptr(), storage.nbytes()


def _round_up(number):
    """The next power of two, so that a restarted process comes to the same layout."""
    return 1 << max(number - 1, 1).bit_length()
