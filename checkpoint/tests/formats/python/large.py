"""A state of 5 GiB, all of it a hole but the end: `large.py make FOLDER`, `large.py check FOLDER`. Standard library only."""

import sys
import zipfile

import case
import trees

GIB = 1 << 30


def make(folder):
    state = trees.TreeCase(folder, "large", "pt")
    rows = [
        case.Row("first", "uint8", [100], bytes(range(100))),
        case.Row("large", "uint8", [5 * GIB], case.Zeros(5 * GIB)),
        case.Row("small", "uint8", [100], bytes(range(100, 200))),
        case.Row("empty", "uint8", [0], b""),
    ]
    state.write(state.node([trees.Tensor(row) for row in rows]))


def check(folder):
    path = case.Path(folder) / "large" / "file.pt"
    archive = zipfile.ZipFile(path)
    with open(path, "rb") as file:
        for info in archive.infolist():
            file.seek(info.header_offset)
            header = file.read(30)
            start = info.header_offset + 30 + sum(int.from_bytes(header[at:at + 2], "little") for at in (26, 28))
            assert header[:4] == b"PK\3\4" and start % 64 == 0, info
    sizes = [archive.getinfo("archive/data/%d" % number).file_size for number in range(4)]
    assert sizes == [100, 5 * GIB, 100, 0], sizes
    assert archive.getinfo("archive/data/2").header_offset > 5 * GIB
    # With their checksums.
    assert archive.read("archive/data/0") == bytes(range(100))
    assert archive.read("archive/data/2") == bytes(range(100, 200))
    print("checked")


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
