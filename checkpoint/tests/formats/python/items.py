"""Random .distcp files: `items.py make FOLDER`, `items.py check FOLDER`. Standard library only."""

import io
import json
import sys
import zipfile

import case
import layout
import trees


def make(folder):
    for number in range(24):
        states = trees.States("items %d" % number)
        choose = states.random
        items = trees.TreeCase(folder, "%02d" % number, "dcp", number)
        pairs = []
        for place in range(choose.choice([0, 1, 5, 40])):
            pairs.append(["item %d" % place, value(states, items)])
        items.write({"d": [["extra", 5], ["items", {"d": pairs}], ["metadata", None]]})


def value(states, items):
    choose = states.random
    if choose.random() < 0.4:
        dtype = choose.choice(sorted(trees.SIZES))
        shape = [choose.choice([1, 1, 2, 3]) for _ in range(choose.choice([0, 1, 2, 8, 9, 12]))]
        elements = 1
        for size in shape:
            elements *= size
        return items.node(trees.Tensor(case.Row("t", dtype, shape, states.bytes(elements * trees.SIZES[dtype]))))
    plain = [states.integer, states.float, states.text, lambda: None, lambda: (0.9, 0.999),
             lambda: [states.text() for _ in range(9)], lambda: {"a": 1, "b": {"c": "d" * 2000}},
             lambda: bytes(5000), lambda: b"\1\2", lambda: trees.NotProtocol2("x" * 600, 4)]
    return items.node(choose.choice(plain)())


def check(folder):
    folders = case.folders(folder)
    for path in folders:
        meta = json.loads((path / "meta.json").read_text())
        extents = layout.extents(meta, trees.SIZES.__getitem__)
        assert [list(extent) for extent in extents] == json.loads((path / "extents.json").read_text()), path
        (name,) = path.glob("__*_0.distcp")
        assert name.name == "__%d_0.distcp" % int(path.name), name
        content, end = name.read_bytes(), 0
        for offset, length in extents:
            assert not any(content[end:offset]), (path, "bytes between items")
            end = offset + length
            item = content[offset:end]
            assert len(item) == length and item[:4] == b"PK\3\4", (path, offset)
            archive = zipfile.ZipFile(io.BytesIO(item))
            assert archive.testzip() is None, path
            trees.Reader(archive).load()
        assert len(content) == end, path
    print("checked %d files" % len(folders))


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
