"""States of torch as folders: `torch_folders.py make FOLDER KIND` writes slots, `torch_folders.py check FOLDER KIND` reads the
files that were made of them with torch alone. A kind is `dcp`, `planned` or `safetensors`."""

import argparse
import pickle
import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

import layout
from torch_pt import check_model, pt_state
from torch_state import Same, TorchCase, item_size, known, raw, values


def whole_state():
    """name -> (tensor, list of (rank, offsets, shard))"""
    torch.manual_seed(2)
    state = {}
    for place, name in enumerate(known()):
        tensor = values(name, 6, 4)
        if place % 2:
            shards = [(place // 2 % 2, (0, 0), tensor)]
        else:
            shards = [(0, (0, 0), tensor[:2]), (1, (2, 0), tensor[2:])]
        state["w." + name] = (tensor, shards)
    for name, tensor in dict(scalar=values("float32"), many=values("int8", *[1] * 12)).items():
        state[name] = (tensor, [(1, (0,) * tensor.dim(), tensor)])
    large = values("float32", 300, 400)
    blocks = [(rank, (150 * rank, start)) for rank in (0, 1) for start in (0, 200)]
    state["blocks"] = (large, [(rank, at, large[at[0]:at[0] + 150, at[1]:at[1] + 200]) for rank, at in blocks])
    return state


VALUES = {
    "step": 7,
    "optim.lr": 1e-3,
    "optim.betas": (0.9, 0.999),
    "optim.foreach": None,
    "optim.name": "adam" * 300,
    "rng": b"x" * 5000,
    "args": argparse.Namespace(lr=0.1),
    "groups": [{"a": [1, 2]}, 2],
    "big": 1 << 80,
}


def make_dcp(root):
    from torch.distributed.checkpoint import metadata as md
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    state, ranks = whole_state(), {}
    for rank in (0, 1):
        made = TorchCase(root, "r%d" % rank, "dcp", rank)
        (made.folder / "shard").touch()
        items = []
        for name, (_, shards) in state.items():
            for owner, offsets, shard in shards:
                if owner == rank:
                    index = md.MetadataIndex(name, offsets)
                    items.append((index, [str(index), made.node(shard.contiguous())]))
        for name, value in VALUES.items():
            if len(name) % 2 == rank:
                items.append((md.MetadataIndex(name), [name, made.node(value)]))
        ranks[rank] = made, items

    storage = {}
    for rank, (made, items) in ranks.items():
        meta = {"tensors": made.rows, "tree": {"d": [["items", {"d": [item for _, item in items]}]]}}
        for (index, _), (offset, length) in zip(items, layout.extents(meta, item_size)):
            storage[index] = _StorageInfo("__%d_0.distcp" % rank, offset, length)

    def chunk(offsets, shard):
        return md.ChunkStorageMetadata(torch.Size(offsets), shard.size())

    described = {
        name: md.TensorStorageMetadata(md.TensorProperties(tensor.dtype), tensor.size(), [chunk(o, s) for _, o, s in shards])
        for name, (tensor, shards) in state.items()
    }
    described.update((name, md.BytesStorageMetadata()) for name in VALUES)
    paths = {name: (name,) for name in state}
    paths.update((name, tuple(name.split("."))) for name in VALUES)
    whole = md.Metadata(described, paths, storage, md.StorageMeta(), "1.0.0")
    for rank, (made, items) in ranks.items():
        metadata = made.raw(pickle.dumps(whole)) if rank == 0 else None
        made.write({"d": [["items", {"d": [item for _, item in items]}], ["metadata", metadata]]})


def check_dcp(root):
    state = whole_state()
    target = {name: torch.empty_like(tensor) for name, (tensor, _) in state.items()}
    dcp.load(dict(target), checkpoint_id=str(root), planner=dcp.DefaultLoadPlanner(flatten_state_dict=False))
    Same()({name: tensor for name, (tensor, _) in state.items()}, target)
    nested = {}
    for name in VALUES:
        set_at(nested, name.split("."), None)
    dcp.load(nested, checkpoint_id=str(root))
    for name, value in VALUES.items():
        Same()(value, at(nested, name.split(".")), name)

    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(str(root), root / "converted.pt")
    found = torch.load(root / "converted.pt", weights_only=False)
    Same()({name: tensor for name, (tensor, _) in state.items()}, {name: found[name] for name in state})
    for name, value in VALUES.items():
        Same()(value, at(found, name.split(".")), name)
    print("dcp", len(state), "tensors", len(VALUES), "values")


def at(state, path):
    for key in path:
        state = state[key]
    return state


def set_at(state, path, value):
    for key in path[:-1]:
        state = state.setdefault(key, {})
    state[path[-1]] = value


def make_planned(root):
    """As a client does it: torch's planner says what is written, and where it is follows from the meta."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.planner import WriteItemType

    planner = dcp.DefaultSavePlanner()
    planner.set_up_planner(pt_state("model"), None, True)
    (plan,), metadata = planner.create_global_plan([planner.create_local_plan()])
    plan = planner.finish_plan(plan)
    made = TorchCase(root, "r0", "dcp")
    (made.folder / "shard").touch()
    items = []
    for item in plan.items:
        value = planner.lookup_object(item.index)
        if item.type is not WriteItemType.BYTE_IO:
            value = planner.transform_object(item, value).detach().clone(memory_format=torch.contiguous_format)
        items.append([str(item.index), made.node(value)])
    meta = {"tensors": made.rows, "tree": {"d": [["items", {"d": items}]]}}
    places = zip(plan.items, layout.extents(meta, item_size))
    metadata.storage_data = {item.index: _StorageInfo("__0_0.distcp", *place) for item, place in places}
    made.write({"d": [["items", {"d": items}], ["metadata", made.raw(pickle.dumps(metadata))]]})


def check_planned(root):
    state, target = pt_state("model"), pt_state("model")
    for tensor in target["model"].values():
        tensor.zero_()
    target["step"] = None
    dcp.load(target, checkpoint_id=str(root))
    for name in state["model"]:
        assert torch.equal(state["model"][name], target["model"][name]), name
    assert target["step"] == 2 and target["random"] == state["random"]

    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(str(root), root / "converted.pt")
    check_model(torch.load(root / "converted.pt", weights_only=False))
    print("dcp by the planner", len(state["model"]), "tensors")


def in_safetensors():
    try:
        from safetensors.torch import _TYPES
    except ImportError:
        return None
    return {str(dtype)[len("torch."):] for dtype in _TYPES.values() if dtype is not None}


def safetensors_state():
    known = in_safetensors()
    state = whole_state()
    # A rank has one shard of a name.
    del state["blocks"]
    return {name: entry for name, entry in state.items() if str(entry[0].dtype)[len("torch."):] in known}


def make_safetensors(root):
    if in_safetensors() is None:
        return
    state = safetensors_state()
    for rank in (0, 1):
        made = TorchCase(root, "r%d" % rank, "safetensors", rank)
        (made.folder / "shard").touch()
        items, offsets = [], []
        for name, (_, shards) in state.items():
            for owner, start, shard in shards:
                if owner == rank:
                    items.append([name, made.node(shard.contiguous())])
                    if rank:
                        offsets.append([name, made.node(list(start))])
        extra = made.node({"step": 7, "w": torch.arange(3)}) if rank else None
        made.write({"d": [["items", {"d": items}], ["offsets", {"d": offsets}], ["extra", extra]]})


def check_safetensors(root):
    if in_safetensors() is None:
        print("skipped: safetensors is not installed for this interpreter")
        return
    from safetensors.torch import load_file

    state = safetensors_state()
    target = {name: torch.empty_like(tensor) for name, (tensor, _) in state.items()}
    reader = dcp.HuggingFaceStorageReader(str(root))
    dcp.load(dict(target), storage_reader=reader, planner=dcp.DefaultLoadPlanner(flatten_state_dict=False))
    Same()({name: tensor for name, (tensor, _) in state.items()}, target)
    for rank in (0, 1):
        found = load_file(root / ("shard-%05d-model-00001-of-00001.safetensors" % (rank + 1)))
        expected = {name: shard for name, (_, shards) in state.items() for owner, _, shard in shards if owner == rank}
        assert set(found) == set(expected)
        for name, shard in expected.items():
            assert raw(shard.contiguous().clone().untyped_storage()) == raw(found[name].clone().untyped_storage()), name
            assert found[name].dtype == shard.dtype and found[name].shape == shard.shape, name
    extra = torch.load(root / "shard-00002-extra.pt", weights_only=True)
    Same()({"step": 7, "w": torch.arange(3)}, extra)
    print("safetensors", len(state), "tensors")


if __name__ == "__main__":
    # Objects of this file are pickled under one name, whichever way it is run.
    import torch_folders

    verb, folder, kind = sys.argv[1:]
    getattr(torch_folders, "%s_%s" % (verb, kind))(Path(folder))
