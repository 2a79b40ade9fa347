"""A state as a client puts it into a slot: a directory with meta.json, data.bin and skeleton.bin. Standard library only."""

import collections
import io
import json
import pickle
from pathlib import Path

ALIGNMENT = 64


class Row:
    """A tensor for the table. `storage` is anything that tells storages apart, or None for one of its own."""

    def __init__(self, key, dtype, shape, data, storage=None, storage_offset=None, strides=None):
        self.key, self.dtype, self.shape, self.data = key, dtype, list(shape), data
        self.storage, self.storage_offset, self.strides = storage, storage_offset, strides


class Case:
    """Subclasses know what a tensor is: `row(value)` gives its Row, or None for what is none."""

    def __init__(self, folder, name, form, rank=0):
        self.folder = Path(folder) / name
        self.folder.mkdir(parents=True)
        self.form, self.rank = form, rank
        self.rows, self.numbers, self.places, self.kept = [], {}, {}, []
        self.data_len, self.data, self.skeleton = 0, [], io.BytesIO()

    def row(self, value):
        return None

    def index(self, value):
        """The place of a tensor in the table, or None."""
        if id(value) not in self.places:
            row = self.row(value)
            if row is None:
                return None
            self.kept.append(value)
            self.places[id(value)] = len(self.rows)
            self.rows.append(self.entry(row))
        return self.places[id(value)]

    def entry(self, row):
        own = [row.key, row.dtype, row.shape]
        if row.storage is None:
            return own + [self.put(row.data), len(row.data)]
        if row.storage not in self.numbers:
            self.numbers[row.storage] = (self.put(row.data), len(row.data), 7 + len(self.numbers))
        shared = own + list(self.numbers[row.storage])
        return shared if row.strides is None else shared + [row.storage_offset, list(row.strides)]

    def put(self, data):
        offset = -(-self.data_len // ALIGNMENT) * ALIGNMENT
        self.data.append((offset, data))
        self.data_len = offset + len(data)
        return offset

    def odd(self, value, protocol=2):
        """A pickle of its own, with the places of tensors as persistent ids."""
        case = self

        class Leaf(pickle.Pickler):
            def persistent_id(self, value):
                return case.index(value) if protocol == 2 else None

        buffer = io.BytesIO()
        Leaf(buffer, protocol=protocol).dump(value)
        return self.raw(buffer.getvalue())

    def raw(self, pickled):
        start = self.skeleton.tell()
        self.skeleton.write(pickled)
        return {"p": [start, len(pickled)]}

    def key(self, value):
        if isinstance(value, tuple) and type(value) is tuple:
            return {"t": [self.key(item) for item in value]}
        return self.node(value)

    def node(self, value):
        kind = type(value)
        if value is None or kind is bool or kind is str and is_text(value):
            return value
        if kind is int:
            if abs(value) < 1 << 53:
                return value
            return {"i": str(value)} if abs(value) < 10**4300 else self.odd(value)
        if kind is float:
            return {"f": value.hex()}
        if kind is dict:
            return {"d": [[self.key(key), self.node(item)] for key, item in value.items()]}
        if kind is collections.OrderedDict:
            node = {"o": [[self.key(key), self.node(item)] for key, item in value.items()]}
            if vars(value):
                node["a"] = self.node(dict(vars(value)))
            return node
        if kind is list:
            return {"l": [self.node(item) for item in value]}
        if kind is tuple:
            return {"t": [self.node(item) for item in value]}
        index = self.index(value)
        return self.odd(value) if index is None else {"T": index}

    def write(self, tree):
        tree = {"tensors": self.rows, "tree": tree}
        (self.folder / "meta.json").write_text(json.dumps(tree))
        (self.folder / "skeleton.bin").write_bytes(self.skeleton.getvalue())
        (self.folder / "what.txt").write_text("%s %d" % (self.form, self.rank))
        with open(self.folder / "data.bin", "wb") as file:
            for offset, data in self.data:
                file.seek(offset)
                # A long run of zeros stays a hole.
                if isinstance(data, Zeros):
                    file.seek(len(data) - 1, 1)
                    file.write(b"\0")
                else:
                    file.write(data)
            file.truncate(self.data_len)


class Zeros:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length


def is_text(value):
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def folders(root):
    return sorted(path for path in Path(root).iterdir() if path.is_dir())
