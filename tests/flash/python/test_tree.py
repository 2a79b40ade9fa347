"""States as text and back, without torch."""

import argparse
import collections
import json
import pickle
import unittest

from support import ClientTest, same

from dlrover_run.flash_checkpoint.errors import FlashCheckpointError
from dlrover_run.flash_checkpoint.tree import Pickled, flatten, unflatten


def round_trip(state):
    flat = flatten(state)
    skeleton = b"".join(flat.odd)
    assert len(skeleton) == flat.odd_bytes
    return unflatten(json.loads("".join(flat.text)), [], lambda at, length: skeleton[at : at + length])


class Plain(ClientTest):
    def test_plain_values_come_back_as_they_were(self):
        state = {
            "none": None,
            "flags": [True, False],
            "numbers": (0, -1, 1 << 52, 1 << 53, -(1 << 60), 1 << 200),
            "floats": [0.1, -0.0, 1e-310, float("inf"), float("-inf"), float("nan")],
            "texts": ["", 'a"\\\n\x00', "\u00e9\u4e2d\U0001f600"],
            "empty": [{}, [], (), collections.OrderedDict()],
            "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
            1: 2,
            None: 3,
            1.5: 4,
            False: 5,
        }
        same(state, round_trip(state))
        self.assertEqual(str(round_trip(-0.0)), "-0.0")

    def test_the_text_is_what_the_saver_reads(self):
        self.assertEqual(
            "".join(flatten({"a": [1, 0.5], 2: (None, "x")}).text),
            '{"d":[["a",{"l":[1,{"f":"0x1.0000000000000p-1"}]}],[2,{"t":[null,"x"]}]]}',
        )
        self.assertEqual("".join(flatten(1 << 53).text), '{"i":"9007199254740992"}')
        self.assertEqual("".join(flatten(b"").text)[:5], '{"p":')

    def test_other_values_are_pickled(self):
        state = {
            "bytes": b"\x00\xff",
            "set": {1, 2},
            "complex": 1 + 2j,
            "namespace": argparse.Namespace(lr=0.1),
            "counter": collections.Counter("aab"),
            "default": collections.defaultdict(list, {1: [2]}),
            "surrogate": "\ud800",
            "enormous": 1 << 20000,
            ("a", "key"): {"x": 1},
            "keys": {b"x": 1},
        }
        same(state, round_trip(state))
        for pickled in flatten(state).odd:
            # What the saver can put into a file of torch.
            self.assertEqual(pickled[:2], b"\x80\x02")

    def test_a_pickle_is_taken_as_it_is(self):
        self.assertEqual(round_trip({"a": Pickled(pickle.dumps({1: 2}, protocol=4))}), {"a": {1: 2}})

    def test_deep_states_are_pickled_below_some_depth(self):
        deep = state = {}
        for _ in range(100):
            deep["x"] = [{}]
            deep = deep["x"][0]
        text = "".join(flatten(state).text)
        self.assertLess(max(map(text[: text.index('{"p"')].count, "[{")), 120)
        same(state, round_trip(state))

    def test_what_cannot_be_saved_is_named(self):
        with self.assertRaisesRegex(FlashCheckpointError, "type function cannot be pickled.*remove it"):
            flatten({"f": lambda: 0})

    def test_names_are_paths(self):
        class Leaf:
            pass

        flat = flatten({"a": [Leaf(), {"b": Leaf()}], 3: (Leaf(),)}, lambda value: type(value) is Leaf, with_names=True)
        self.assertEqual(flat.names, ["a.0", "a.1.b", "3.0"])
        self.assertEqual(len(flat.tensors), 3)

    def test_text_that_is_no_state_is_refused(self):
        for text in (
            '{"x":1}',
            '{"d":[[1]]}',
            '{"d":1}',
            '{"T":0}',
            '{"T":-1}',
            '{"T":"a"}',
            '{"p":[0]}',
            '{"f":"x"}',
            '{"i":"x"}',
            "[1]",
            "1.5",
            '{"d":[],"o":[]}',
            '{"d":[[{"l":[]},1]]}',
            '{"f":1}',
        ):
            with self.assertRaises(Exception) as raised:
                unflatten(json.loads(text), [], lambda at, length: b"")
            self.assertIsInstance(raised.exception, (ValueError, OverflowError), text)


if __name__ == "__main__":
    unittest.main()
