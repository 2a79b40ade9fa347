"""What the saver reads of a state at most, checked before a save: what it cannot read would be lost at the first load.

The numbers are those of `checkpoint/src/format/meta.rs` and `saver/src/child/persist.rs`; a test compares them.
"""

from .errors import TooLarge

# Values of a state that are no tensors, keys and containers included.
MOST_NODES = 1 << 22

MOST_TENSORS = 1 << 20

# Bytes of the description: names, numbers and texts, and a line for each tensor.
MOST_META_BYTES = 64 << 20

# Bytes of all values that are pickled.
MOST_PICKLED_BYTES = 256 << 20


def check(flat, meta_bytes):
    """Raises TooLarge for a state that the saver cannot read; `meta_bytes` is the length of its description."""
    for found, most, what, remedy in [
        (flat.nodes, MOST_NODES, "values that are not tensors", "keep many numbers in one tensor"),
        (len(flat.tensors), MOST_TENSORS, "tensors", "save fewer and larger ones"),
        (meta_bytes, MOST_META_BYTES, "bytes of names, numbers and texts", "keep large data in tensors"),
        (flat.odd_bytes, MOST_PICKLED_BYTES, "bytes of pickled values", "keep large data in tensors"),
    ]:
        if found > most:
            raise TooLarge(
                "the state has %d %s, more than the saver of checkpoints reads (%d): %s" % (found, what, most, remedy)
            )
