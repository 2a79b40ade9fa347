"""Random states: `trees.py make FOLDER SEED COUNT` writes slots, `trees.py check FOLDER SEED COUNT` reads the .pt files that
were made of them, with Python's own zipfile and pickle, and holds them against the same states. Standard library only."""

import argparse
import collections
import datetime
import decimal
import fractions
import io
import math
import pickle
import pickletools
import random
import sys
import zipfile

import case

SIZES = dict(uint8=1, bool=1, int16=2, bfloat16=2, float32=4, int64=8, complex128=16, float8_e5m2=1, uint32=4, complex32=4)
CLASSES = dict(
    uint8="ByteStorage", bool="BoolStorage", int16="ShortStorage", bfloat16="BFloat16Storage", float32="FloatStorage",
    int64="LongStorage", complex128="ComplexDoubleStorage",
)
Pair = collections.namedtuple("Pair", "left right")


class Tensor:
    def __init__(self, row):
        self.row = row

    def contiguous(self):
        strides, step = [], 1
        for size in reversed(self.row.shape):
            strides.append(step)
            step *= max(size, 1)
        return strides[::-1]

    def facts(self):
        row = self.row
        strides = self.contiguous() if row.strides is None else row.strides
        return (row.dtype, tuple(row.shape), row.storage_offset or 0, tuple(strides), bytes(row.data))


class Node:
    """An object that contains itself."""


class TreeCase(case.Case):
    def row(self, value):
        return value.row if isinstance(value, Tensor) else None

    def node(self, value):
        if type(value) is NotProtocol2:
            return self.odd(value.value, value.protocol)
        return super().node(value)


class NotProtocol2:
    def __init__(self, value, protocol):
        self.value, self.protocol = value, protocol


class States:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.tensors, self.storages = [], []

    def bytes(self, count):
        return self.random.randbytes(count)

    def text(self):
        letters = "ab \n\t\"\\'é\u4e2d\U0001f600\0"
        return "".join(self.random.choices(letters, k=self.random.choice([0, 1, 3, 8, 300])))

    def tensor(self):
        if self.tensors and self.random.random() < 0.3:
            return self.random.choice(self.tensors)
        if self.storages and self.random.random() < 0.4:
            tensor = self.view(*self.random.choice(self.storages))
        else:
            dtype = self.random.choice(sorted(SIZES))
            shape = [self.random.choice([0, 1, 2, 3, 5]) for _ in range(self.random.choice([0, 1, 1, 2, 3, 5]))]
            data = self.bytes(math.prod(shape) * SIZES[dtype])
            tensor = Tensor(case.Row("t%d" % len(self.tensors), dtype, shape, data))
            if self.random.random() < 0.4:
                name = "storage %d" % len(self.storages)
                data = self.bytes(self.random.choice([48, 240, 64]))
                self.storages.append((name, dtype, data))
                tensor = self.view(name, dtype, data)
        self.tensors.append(tensor)
        return tensor

    def view(self, name, dtype, data):
        if self.random.random() < 0.1:
            dtype = self.random.choice(sorted(SIZES))
        elements = len(data) // SIZES[dtype]
        first = self.random.randrange(elements)
        shape, strides, left = [], [], elements - 1 - first
        for _ in range(self.random.choice([0, 1, 2, 3])):
            stride = self.random.choice([0, 1, 2, 7])
            size = self.random.randint(1, 4 if stride == 0 else min(4, 1 + left // stride))
            left -= (size - 1) * stride
            shape.append(size)
            strides.append(stride)
        return Tensor(case.Row("v%d" % len(self.tensors), dtype, shape, data, name, first, strides))

    def integer(self):
        bits = self.random.choice([1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 53, 54, 63, 64, 65, 1000, 8000, 14000])
        value = self.random.getrandbits(bits) + self.random.choice([0, 1 << bits - 1, (1 << bits) - 1])
        return self.random.choice([value, -value, -value - 1])

    def float(self):
        special = [0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308]
        return self.random.choice(special + [self.random.uniform(-9, 9), self.random.lognormvariate(0, 100)])

    def odd(self):
        key = self.random.choice(["x", "y"])
        shared = [self.text()]
        choices = [
            lambda: argparse.Namespace(**{key: self.value(3), "lr": 0.1}),
            lambda: Pair(self.value(3), self.text()),
            lambda: self.bytes(self.random.choice([0, 3, 300])),
            lambda: bytearray(b"ab"),
            lambda: {1, "two", (3, 4)},
            lambda: frozenset([1]),
            lambda: 2.5 - 3j,
            lambda: fractions.Fraction(1, 3),
            lambda: decimal.Decimal("1.10"),
            lambda: datetime.datetime(2026, 2, 3, 4, 5, 6, 7),
            lambda: collections.Counter("abca"),
            lambda: collections.deque([self.tensor(), 1], maxlen=5),
            lambda: "lone \ud800",
            lambda: range(5),
            lambda: slice(1, None),
            lambda: collections.OrderedDict,
            lambda: argparse.Namespace(a=shared, b=shared, c=(shared, self.tensor())),
            lambda: [self.text() for _ in range(300)] and argparse.Namespace(many=[self.text() for _ in range(2500)]),
            lambda: NotProtocol2({"a": [self.text(), self.bytes(9)], "b": {1, 2}}, self.random.choice([3, 4, 5])),
            self.cycle,
        ]
        return self.random.choice(choices)()

    def cycle(self):
        node = Node()
        node.items = [1, "a", (2, [node])]
        node.same = node.items
        return node

    def key(self):
        choices = [self.text, self.integer, lambda: self.random.random(), lambda: None, lambda: True,
                   lambda: (1, (self.text(),)), lambda: frozenset([1, 2]), lambda: b"key"]
        return self.random.choices(choices, [8, 2, 1, 1, 1, 1, 1, 1])[0]()

    def value(self, depth):
        if depth > 5 or depth and self.random.random() < 0.4:
            leaf = [self.integer, self.float, self.text, lambda: None, lambda: True, lambda: False, self.tensor, self.tensor]
            return self.random.choice(leaf)()
        size = self.random.choice([0, 1, 2, 3, 4, 6] if depth else [8, 16])
        kind = self.random.randrange(6) if depth else 3
        if kind == 5:
            return self.odd()
        if kind < 2:
            return [list, tuple][kind](self.value(depth + 1) for _ in range(size))
        pairs = [(self.key(), self.value(depth + 1)) for _ in range(size)]
        if kind < 4:
            return dict(pairs)
        ordered = collections.OrderedDict(pairs)
        if self.random.random() < 0.5:
            ordered._metadata = collections.OrderedDict([("", {"version": 2})])
        return ordered


def states(seed, count):
    for number in range(count):
        yield number, States("%s %d" % (seed, number)).value(0)
    deep = 1
    for level in range(198):
        deep = [deep] if level % 3 else {"k": deep}
    yield count, deep
    yield count + 1, {"%d" % key: {"exp_avg": key, "step": 1.0} for key in range(4000)}


class Storage:
    def __init__(self, name, key, numel):
        self.name, self.key, self.numel = name, key, numel


class Reader(pickle.Unpickler):
    """Reads `data.pkl` as torch does, with stand-ins for its classes."""

    def __init__(self, archive):
        super().__init__(io.BytesIO(archive.read("archive/data.pkl")))
        self.archive = archive
        self.tensors = {}

    def find_class(self, module, name):
        if module in ("torch._utils", "torch", "torch.storage"):
            rebuild = {"_rebuild_tensor_v2": self.typed, "_rebuild_tensor_v3": self.bytes}
            return rebuild.get(name, name)
        return super().find_class(module, name)

    def persistent_load(self, ident):
        kind, name, key, place, numel = ident
        assert (kind, place) == ("storage", "cpu"), ident
        return Storage(name, key, numel)

    def typed(self, storage, offset, size, stride, requires_grad, hooks):
        ((dtype, _),) = [item for item in CLASSES.items() if item[1] == storage.name]
        return self.rebuild(storage, SIZES[dtype], offset, size, stride, requires_grad, hooks, dtype)

    def bytes(self, storage, offset, size, stride, requires_grad, hooks, dtype):
        assert storage.name == "UntypedStorage", storage.name
        return self.rebuild(storage, 1, offset, size, stride, requires_grad, hooks, dtype)

    def rebuild(self, storage, item, offset, size, stride, requires_grad, hooks, dtype):
        assert requires_grad is False and type(hooks) is collections.OrderedDict and not hooks
        data = self.archive.read("archive/data/" + storage.key)
        assert len(data) == storage.numel * item, (len(data), storage.numel, item)
        row = case.Row("", dtype, size, data, storage.key, offset, stride)
        return Tensor(row)


class Comparison:
    """Equality of values with their types; the same tensor must be the same object everywhere."""

    def __init__(self):
        self.tensors = {}

    def same(self, expected, found, path):
        expected, found = (v.value if type(v) is NotProtocol2 else v for v in (expected, found))
        assert type(expected) is type(found), (path, type(expected), type(found))
        if isinstance(expected, Tensor):
            assert expected.facts() == found.facts(), (path, expected.facts(), found.facts())
            known = self.tensors.setdefault(id(expected), found)
            assert known is found, (path, "one tensor became two")
        elif isinstance(expected, float):
            assert expected.hex() == found.hex(), (path, expected, found)
        elif isinstance(expected, dict):
            assert len(expected) == len(found), path
            for (key, value), (other, second) in zip(expected.items(), found.items()):
                self.same(key, other, path + ["key"])
                self.same(value, second, path + [key])
            if isinstance(expected, collections.OrderedDict):
                self.same(vars(expected), vars(found), path + ["attributes"])
        elif isinstance(expected, (list, tuple, collections.deque)):
            assert len(expected) == len(found), path
            for number, (value, second) in enumerate(zip(expected, found)):
                self.same(value, second, path + [number])
        elif isinstance(expected, argparse.Namespace):
            self.same(vars(expected), vars(found), path)
            if "c" in vars(found):
                assert found.a is found.b is found.c[0], path
        elif type(expected) is Node:
            assert found.same is found.items and found.items[:2] == [1, "a"] and found.items[2][1][0] is found, path
        else:
            assert expected == found, (path, expected, found)


def make(folder, seed, count):
    for number, state in states(seed, count):
        tree = TreeCase(folder, "%04d" % number, "pt")
        tree.write(tree.node(state))


def check(folder, seed, count):
    checked = 0
    for (number, state), path in zip(states(seed, count), case.folders(folder)):
        with open(path / "file.pt", "rb") as file:
            content = file.read()
        archive = zipfile.ZipFile(io.BytesIO(content))
        assert archive.testzip() is None, path
        for info in archive.infolist():
            name, extra = content[info.header_offset + 26:][:2], content[info.header_offset + 28:][:2]
            start = info.header_offset + 30 + int.from_bytes(name, "little") + int.from_bytes(extra, "little")
            assert start % 64 == 0, (path, info.filename, start)
            assert content[start:start + info.file_size] == archive.read(info), (path, info.filename)
        names = set(archive.namelist())
        assert len(names) == len(archive.namelist()), (path, "a record twice")
        fixed = "data.pkl .format_version .storage_alignment byteorder version".split()
        assert names >= {"archive/" + name for name in fixed}, path
        reader = Reader(archive)
        found = reader.load()
        pickled = archive.read("archive/data.pkl")
        opcodes = list(pickletools.genops(pickled))
        assert opcodes[-1][2] == len(pickled) - 1, path
        Comparison().same(state, found, ["state %d" % number])
        checked += 1
    print("checked %d states" % checked)


if __name__ == "__main__":
    sys.setrecursionlimit(10000)
    # Objects of this file are pickled under one name, whichever way it is run.
    import trees

    getattr(trees, sys.argv[1])(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
