"""Headers of slots, and mappings."""

import mmap
import os
import struct
import unittest
import zlib

from support import ClientTest

from dlrover_run.flash_checkpoint import header
from dlrover_run.flash_checkpoint.mapping import Mapping


def whole_slot(step=7):
    slot = memoryview(bytearray(8192))
    slot[4096:4106] = b"0123456789"
    header.open_write(slot)
    body = dict.fromkeys(header.Body._fields, 0)
    body.update(step=step, world=1, n_shards=1, meta_off=4096, meta_len=10, data_off=8192)
    header.close_write(slot, header.Body(**body))
    return slot


class Header(ClientTest):
    def test_fields_lie_where_the_saver_looks(self):
        slot = memoryview(bytearray(8192))
        header.open_write(slot)
        self.assertEqual(bytes(slot[:16]), b"DLRFCKP1" + struct.pack("<II", 1, 4096))
        self.assertEqual(struct.unpack_from("<Q", slot, 16), (1,))
        body = header.Body(*range(100, 118))._replace(meta_off=4096, meta_len=3, data_off=4096, data_len=0)
        header.close_write(slot, body)
        self.assertEqual(struct.unpack_from("<Q", slot, 16), (2,))
        self.assertEqual(struct.unpack_from("<qIIIIIIQ", slot, 24), (100, 101, 102, 103, 104, 105, 106, 107))
        self.assertEqual(struct.unpack_from("<QQQQQQ", slot, 64), (4096, 3, 4096, 0, 112, 113))
        self.assertEqual(struct.unpack_from("<QQQQ", slot, 112), (114, 115, 116, 117))
        self.assertEqual(struct.unpack_from("<I", slot, 144)[0], zlib.crc32(bytes(slot[24:144]) + bytes(3)))

    def test_a_slot_is_whole_only_between_writes(self):
        slot = whole_slot()
        self.assertEqual(header.read(slot).step, 7)
        header.open_write(slot)
        with self.assertRaisesRegex(header.Damaged, "was not finished .sequence number 3"):
            header.read(slot)
        # A writer that died here left it odd; the next one makes it whole.
        header.open_write(slot)
        self.assertEqual(struct.unpack_from("<Q", slot, 16), (3,))
        with self.assertRaisesRegex(header.Damaged, "starts with"):
            header.read(memoryview(bytearray(8192)))
        with self.assertRaisesRegex(header.Damaged, "fewer than its header"):
            header.read(slot[:100])

    def test_a_changed_byte_is_found(self):
        for at in list(range(24, 148)) + [4096, 4105]:
            slot = whole_slot()
            slot[at] ^= 0x10
            with self.assertRaises(header.Damaged):
                header.read(slot)

    def test_places_beyond_the_slot_are_refused(self):
        for field, value in [("meta_len", 1 << 63), ("data_off", 8193), ("data_len", 1 << 40), ("skeleton_len", 9000)]:
            slot = whole_slot()
            body = header.Body(**dict(header.read(slot)._asdict(), **{field: value, "data_len": 1 << 20}))
            header._BODY.pack_into(slot, 24, *body)
            with self.assertRaisesRegex(header.Damaged, "but the slot has"):
                header.read(slot)


class Mappings(ClientTest):
    def file(self, size):
        descriptor = os.memfd_create("test")
        self.addCleanup(os.close, descriptor)
        os.ftruncate(descriptor, size)
        return descriptor

    def test_shared_writes_are_in_the_file_and_private_ones_are_not(self):
        descriptor = self.file(3 * mmap.PAGESIZE)
        shared, private = Mapping(descriptor, 3 * mmap.PAGESIZE), Mapping(descriptor, 3 * mmap.PAGESIZE, private=True)
        shared.bytes()[5] = 7
        self.assertEqual(os.pread(descriptor, 1, 5), b"\x07")
        # A page that was not written shows the file; one that was does not.
        self.assertEqual(private.bytes()[5], 7)
        private.bytes()[6] = 9
        shared.bytes()[5] = 8
        self.assertEqual((private.bytes()[5], os.pread(descriptor, 1, 6)), (7, b"\x00"))
        private.populate(mmap.PAGESIZE + 100, 1)
        shared.bytes()[mmap.PAGESIZE] = shared.bytes()[2 * mmap.PAGESIZE] = 3
        self.assertEqual((private.bytes()[mmap.PAGESIZE], private.bytes()[2 * mmap.PAGESIZE]), (0, 3))

    def test_a_file_that_is_too_short_is_refused(self):
        with self.assertRaisesRegex(OSError, "has 4096 bytes; expected 8192"):
            Mapping(self.file(4096), 8192)

    def test_pieces_keep_the_mapping(self):
        def is_mapped(address):
            with open("/proc/self/maps") as maps:
                return any(
                    int(line.split("-")[0], 16) <= address < int(line.split("-")[1].split(" ")[0], 16) for line in maps
                )

        size = 64 * mmap.PAGESIZE
        mapping = Mapping(self.file(size), size)
        address = mapping.address
        piece = mapping.piece(mmap.PAGESIZE, 100)
        del mapping
        self.assertTrue(is_mapped(address))
        piece[0] = 1
        del piece
        self.assertFalse(is_mapped(address))

    def test_a_forked_child_does_not_have_shared_ones_and_leaves_its_own_alone(self):
        size = 64 * mmap.PAGESIZE
        mapping = Mapping(self.file(size), size)
        address = mapping.address
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with open("/proc/self/maps") as maps:
                    is_there = any(line.startswith("%x-" % address) for line in maps)
                # Something else comes to lie there; the end of the mapping must not unmap it.
                other = mmap.mmap(-1, size)
                other[0] = 1
                del mapping
                other[0] = 2
                code = 3 if is_there else 0
            finally:
                os._exit(code)
        os.close(writer)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        os.close(reader)
        mapping.bytes()[0] = 1


if __name__ == "__main__":
    unittest.main()
