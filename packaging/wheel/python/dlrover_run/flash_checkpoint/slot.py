"""Slots: memory files of the saver that hold one state each."""

import os
import threading
import time

from . import header
from .errors import FlashCheckpointError
from .mapping import Mapping


class Slot:
    """A slot that this process may write. `number` is the saver's; `descriptor` is closed here."""

    def __init__(self, number, size, descriptor):
        self.number = number
        try:
            self.mapping = Mapping(descriptor, size)
        finally:
            os.close(descriptor)
        self.bytes = self.mapping.bytes()
        # Held while targets are made: by a save, or before it in the background.
        self._lock = threading.Lock()
        self._populated = 0
        self._layout = None
        self._targets = None

    def populate(self, length):
        """Gives the first `length` bytes pages now: a copy into pages that are not there is several times slower."""
        if length > self._populated:
            self.mapping.populate(self._populated, length - self._populated)
            self._populated = length

    def write(self, layout, flat, identity, step, epoch):
        """Writes a state. The slot is whole when this returns; when it raises, the slot is not."""
        began = time.time_ns()
        text = meta_text(layout, flat)
        skeleton_off = header.LENGTH + len(text)
        if skeleton_off + flat.odd_bytes > layout.data_off or layout.slot_bytes > self.mapping.size:
            raise FlashCheckpointError("the state does not fit into its slot; this is a bug of dlrover-run")
        self.populate(layout.data_off + layout.data_len)
        header.open_write(self.bytes)
        self.bytes[header.LENGTH : skeleton_off] = text
        end = skeleton_off
        for pickled in flat.odd:
            self.bytes[end : end + len(pickled)] = pickled
            end += len(pickled)
        if flat.tensors:
            from . import copying

            copying.copy_all(layout, flat.tensors, self.targets(layout))
        body = header.Body(
            step=step,
            rank=identity.rank,
            world=identity.world,
            shard=identity.shard,
            n_shards=identity.n_shards,
            pid=os.getpid(),
            restarts=identity.restarts,
            layout_id=layout.id,
            meta_off=header.LENGTH,
            meta_len=len(text),
            data_off=layout.data_off,
            data_len=layout.data_len,
            skeleton_off=skeleton_off,
            skeleton_len=flat.odd_bytes,
            began_ns=began,
            ended_ns=time.time_ns(),
            epoch=epoch,
            flags=(header.REPLICATED if identity.replicated else 0) | (header.HAS_SKELETON if flat.odd_bytes else 0),
        )
        header.close_write(self.bytes, body)

    def targets(self, layout):
        """The tensors of the slot for this layout; they are made once."""
        with self._lock:
            if self._layout is not layout:
                from . import copying

                self._targets = copying.targets_of(layout, self.mapping.array)
                self._layout = layout
            return self._targets


def meta_text(layout, flat):
    """The description of a state, as it is in the slot."""
    return ('{"tensors":%s,"tree":%s}' % (layout.table, "".join(flat.text))).encode("ascii")


def meta_bytes(flat):
    """Bytes of description and skeleton without the table of tensors."""
    return sum(map(len, flat.text)) + len('{"tensors":,"tree":}') + flat.odd_bytes
