"""The header of a slot: what is in it, whether it is whole, and where. All numbers are little endian."""

import collections
import struct
import zlib

MAGIC = b"DLRFCKP1"
VERSION = 1

# Bytes of the header; what follows is found by its fields.
LENGTH = 4096

# Flags.
REPLICATED = 1
HAS_SKELETON = 2

_START = struct.Struct("<8sIIQ")
_SEQUENCE = struct.Struct("<Q")
_SEQUENCE_AT = 16
_BODY = struct.Struct("<qIIIIIIQQQQQQQQQQQ")
_BODY_AT = 24
_CHECKSUM = struct.Struct("<I")
_CHECKSUM_AT = _BODY_AT + _BODY.size
assert _CHECKSUM_AT == 144

# The fields under the checksum, in their order. Offsets and lengths are bytes of the slot.
Body = collections.namedtuple(
    "Body",
    "step rank world shard n_shards pid restarts layout_id meta_off meta_len data_off data_len skeleton_off "
    "skeleton_len began_ns ended_ns epoch flags",
)


class Damaged(Exception):
    """A slot does not hold a whole state."""


def open_write(slot):
    """Marks `slot`, a memoryview, as being written."""
    magic, _, _, sequence = _START.unpack_from(slot, 0)
    if magic != MAGIC:
        sequence = 0
    # First the mark. A writer that died in the middle left it odd.
    _SEQUENCE.pack_into(slot, _SEQUENCE_AT, sequence | 1)
    _START.pack_into(slot, 0, MAGIC, VERSION, LENGTH, sequence | 1)


def close_write(slot, body):
    """Fills the header in and marks the slot as whole. The meta that `body` points to is there."""
    _BODY.pack_into(slot, _BODY_AT, *body)
    _CHECKSUM.pack_into(slot, _CHECKSUM_AT, _checksum(slot, body))
    _SEQUENCE.pack_into(slot, _SEQUENCE_AT, (_SEQUENCE.unpack_from(slot, _SEQUENCE_AT)[0] | 1) + 1)


def read(slot):
    """The fields of a whole slot. Raises Damaged when it is not whole, or a field cannot be."""
    if len(slot) < LENGTH:
        raise Damaged("the slot has %d bytes, fewer than its header" % len(slot))
    magic, version, length, sequence = _START.unpack_from(slot, 0)
    if magic != MAGIC or version != VERSION or length != LENGTH:
        raise Damaged("the slot starts with %r, version %d; expected %r, version %d" % (magic, version, MAGIC, VERSION))
    if sequence == 0 or sequence % 2:
        raise Damaged("the write into the slot was not finished (sequence number %d)" % sequence)
    body = Body(*_BODY.unpack_from(slot, _BODY_AT))
    for name, start, count in [
        ("metadata", body.meta_off, body.meta_len),
        ("data", body.data_off, body.data_len),
        ("skeleton", body.skeleton_off, body.skeleton_len),
    ]:
        if start + count > len(slot) or (count and start < LENGTH):
            raise Damaged(
                "%s is at byte %d and has %d bytes, but the slot has %d bytes" % (name, start, count, len(slot))
            )
    expected = _CHECKSUM.unpack_from(slot, _CHECKSUM_AT)[0]
    found = _checksum(slot, body)
    if found != expected:
        raise Damaged(
            "the checksum of header and metadata is %08x; the header says %08x: one of them was changed"
            % (found, expected)
        )
    return body


def _checksum(slot, body):
    first = zlib.crc32(slot[_BODY_AT:_CHECKSUM_AT])
    return zlib.crc32(slot[body.meta_off : body.meta_off + body.meta_len], first) & 0xFFFFFFFF
