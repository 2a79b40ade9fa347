"""States that the saver cannot read are not given to it. Without torch."""

import os
import re
import unittest

from support import HERE, ClientTest, same

from dlrover_run.flash_checkpoint import DdpCheckpointer, FlashCheckpointError, StorageType, limits, tree

ROOT = os.path.join(HERE, "..", "..", "..")


def constant(name, *path):
    """The number of a constant of the saver."""
    with open(os.path.join(ROOT, *path)) as file:
        found = re.search(r"const %s: \w+ = (\d+)(?: << (\d+))?;" % name, file.read())
    return int(found.group(1)) << int(found.group(2) or 0)


class Limits(ClientTest):
    def limit(self, name, most):
        self.addCleanup(setattr, limits, name, getattr(limits, name))
        setattr(limits, name, most)

    def test_they_are_not_above_those_of_the_saver(self):
        meta = "checkpoint", "src", "format", "meta.rs"
        self.assertLessEqual(limits.MOST_NODES, constant("MAX_NODES", *meta))
        self.assertLessEqual(limits.MOST_TENSORS, constant("MAX_TENSORS", *meta))
        self.assertLessEqual(limits.MOST_META_BYTES, constant("MAX_BYTES", *meta))
        skeleton = constant("MAX_SKELETON", "saver", "src", "child", "persist.rs")
        self.assertLessEqual(limits.MOST_PICKLED_BYTES, skeleton)

    def test_nodes_are_counted_as_the_saver_does(self):
        # A dict, its three keys, their values, and the items of the list and the tuple.
        self.assertEqual(tree.flatten({"a": [1, 2], "b": (None,), "c": {1}}).nodes, 1 + 3 + 3 + 2 + 1)
        self.assertEqual(tree.flatten(7).nodes, 1)

    def test_such_a_state_goes_to_disk_only(self):
        saver = self.reference()
        checkpointer = DdpCheckpointer(self.folder)
        for name, most, state, reason in [
            ("MOST_NODES", 6, {"a": [1, 2, 3, 4]}, "7 values that are not tensors, more than .* reads .6.: keep many"),
            ("MOST_META_BYTES", 99, {"a": "x" * 100}, "bytes of names, numbers and texts, more than"),
            ("MOST_PICKLED_BYTES", 99, {"a": {"x" * 100}}, "bytes of pickled values, more than"),
        ]:
            self.limit(name, most)
            result = checkpointer.save_checkpoint(1, state, storage_type=StorageType.MEMORY)
            self.assertFalse(result)
            self.assertRegex(result.error, "step 1 is not saved: the state has .*" + reason)
            self.assertTrue(checkpointer.save_checkpoint(2, state))
            self.limit(name, 1 << 40)
            # The saver hears of the step that was written without it, and of nothing else.
            others = {request["type"] for request in saver.requests}
            self.assertEqual(others - {"hello", "written_alone"}, set())
            address = os.environ.pop("DLROVER_CKPT_SOCK")
            same(state, DdpCheckpointer(self.folder).load_checkpoint())
            os.environ["DLROVER_CKPT_SOCK"] = address
        self.assertSaid("checkpoints are written to disk by the training process")
        self.limit("MOST_NODES", 0)
        with self.assertRaisesRegex(FlashCheckpointError, "the state has"):
            DdpCheckpointer(self.folder, on_error="raise").save_checkpoint(3, {}, storage_type=StorageType.MEMORY)

    def test_a_long_list_is_one_value(self):
        self.saver()
        state = {"order": list(range(200000)), "texts": ("\u00e9", None, True, 0.5, b"x") * 30000}
        flat = tree.flatten(state)
        self.assertEqual((flat.nodes, len(flat.odd)), (5, 2))
        checkpointer = DdpCheckpointer(self.folder)
        self.assertTrue(checkpointer.save_checkpoint(1, state, storage_type=StorageType.MEMORY))
        same(state, checkpointer.load_checkpoint())
        # Of others, each item may be a tensor.
        self.assertEqual(len(tree.flatten([[]] * 200000).odd), 0)


if __name__ == "__main__":
    unittest.main()
