"""States of torch as .pt files: `torch_pt.py make FOLDER pt` writes slots, `torch_pt.py check FOLDER pt` reads the files
that were made of them with torch alone, and holds them against the same states."""

import argparse
import collections
import io
import os
import pickle
import random
import sys
from pathlib import Path

import torch

from torch_state import Same, TorchCase, known, values


def load_in_every_way(path, expected, unsafe=False):
    from torch.utils.serialization import config

    def load(**options):
        # Ranges of a mapped file are storages of their own.
        return Same()(expected, torch.load(path, **options))

    count = load(weights_only=False)
    if not unsafe:
        assert load(weights_only=True) == load(weights_only=True, mmap=True) == count
    load(weights_only=False, mmap=True)
    # torch computes where storages are, and compares with where they are.
    os.environ["TORCH_SERIALIZATION_DEBUG"] = "1"
    with config.patch({"load.calculate_storage_offsets": True}):
        load(weights_only=False, mmap=True)
        load(weights_only=False)
    torch.load(path, weights_only=False, map_location="meta")
    return count


def pt_types():
    shapes = [(3, 5), (), (0,), (2, 0, 3), (70,)]
    return {name: [values(name, *shape) for shape in shapes] for name in known()}


def pt_views():
    base = values("float32", 4, 6)
    storage = values("uint8", 64)
    state = collections.OrderedDict()
    state["base"], state["transposed"], state["rows"], state["tied"] = base, base.t(), base[1:3], base.view(24)
    state["columns"], state["one"], state["again"] = base[:, ::2], base[2, 3], state["rows"]
    state["expanded"] = values("int16", 1).expand(1000, 3)
    state["channels last"] = values("float16", 2, 3, 4, 5).to(memory_format=torch.channels_last)
    state["bytes"], state["integers"] = storage, storage.view(torch.int32)
    state["tail"] = values("uint8", 7)[3:]
    state["empty view"] = base[4:]
    state._metadata = collections.OrderedDict([("", {"version": 1}), ("bn", {"version": 2})])
    return state


def pt_model():
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    model[2].extra = torch.nn.Parameter(model[0].weight.data)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    for _ in range(2):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        schedule.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    return dict(state, step=2, loss=0.1, rng=torch.get_rng_state(), random=random.Random(4).getstate(), note="é")


def pt_odd():
    """What torch.load allows with weights_only."""
    tensor = values("float32", 3)
    return {
        "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "bytes": b"\0\1\xff",
        "set": {1, "a"},
        "complex": 1 + 2j,
        "parameter": torch.nn.Parameter(tensor),
        "counter": collections.Counter("abca"),
        "tensor": tensor,
        "large": 1 << 2000,
        "lone": "\ud800",
        "text": "x" * 70000,
    }


class Config:
    def __init__(self, tensor):
        self.tensor, self.items, self.again = tensor, [tensor], self

    def __eq__(self, other):
        return torch.equal(self.tensor, other.tensor) and other.items[0] is other.tensor and other.again is other


def pt_unsafe():
    import numpy

    tensor = values("float32", 3)
    state = {"args": argparse.Namespace(lr=0.1, w=tensor), "config": Config(tensor), "w": tensor, "path": Path("/a/b")}
    state["random"] = numpy.random.RandomState(3).get_state()[2:]
    # The pickle is not of protocol 2.
    state["newer"] = numpy.dtype("float32")
    return state


def pt_tiny():
    return {"p%d" % number: {"exp_avg": values("float32", 3), "step": torch.tensor(float(number))} for number in range(2000)}


def pt_large():
    return [values("float32", 3), torch.empty(5 << 30, dtype=torch.uint8), values("float32", 5), values("int64", 0)]


PT = dict(types=pt_types, views=pt_views, model=pt_model, odd=pt_odd, unsafe=pt_unsafe, tiny=pt_tiny, large=pt_large)


def pt_state(name):
    torch.manual_seed(1)
    return PT[name]()


def make_pt(root):
    for name in PT:
        state = pt_state(name)
        made = TorchCase(root, name, "pt")
        made.own = name == "tiny"
        tree = made.node(state)
        if name == "unsafe":
            ((place, pair),) = [(place, pair) for place, pair in enumerate(tree["d"]) if pair[0] == "newer"]
            tree["d"][place] = [pair[0], made.odd(state["newer"], 4)]
        made.write(tree)


def check_pt(root):
    for name in PT:
        path = root / name / "file.pt"
        if name == "large":
            check_large(path)
            continue
        state = pt_state(name)
        count = load_in_every_way(path, state, unsafe=name == "unsafe")
        # The comparison itself: torch's own file passes too.
        buffer = io.BytesIO()
        try:
            torch.save(state, buffer)
        except RuntimeError as error:
            assert name == "views" and "as different types" in str(error), error
        else:
            buffer.seek(0)
            Same()(state, torch.load(buffer, weights_only=False))
            ours, theirs = path.stat().st_size, len(buffer.getvalue())
            assert ours < theirs * 1.1 + 4096, (name, ours, theirs)
        if name == "unsafe":
            refused(lambda: torch.load(path, weights_only=True))
        if name == "model":
            check_model(torch.load(path, weights_only=True))
        print("pt", name, count, "tensors")


def check_model(state):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    model[2].extra = torch.nn.Parameter(model[0].weight.data)
    assert not any(model.load_state_dict(state["model"]))
    torch.optim.AdamW(model.parameters()).load_state_dict(state["optimizer"])


def check_large(path):
    state = pt_state("large")
    from torch.utils.serialization import config

    os.environ["TORCH_SERIALIZATION_DEBUG"] = "1"
    with config.patch({"load.calculate_storage_offsets": True}):
        found = torch.load(path, mmap=True, weights_only=True)
    for place in (0, 2, 3):
        Same()(state[place].clone(), found[place].clone())
    assert found[1].shape == state[1].shape and not found[1][-1000:].any()
    print("pt large", found[1].nbytes, "bytes")


def refused(load):
    try:
        load()
    except pickle.UnpicklingError:
        return
    raise AssertionError("it was loaded")


if __name__ == "__main__":
    # Objects of this file are pickled under one name, whichever way it is run.
    import torch_pt

    verb, folder, kind = sys.argv[1:]
    getattr(torch_pt, "%s_%s" % (verb, kind))(Path(folder))
