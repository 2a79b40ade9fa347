"""Which rank writes what of a sharded state, as torch's planner says: once for a layout.

The files are those of torch.distributed.checkpoint. The saver writes `__<rank>_0.distcp` from the slot of a rank, with
each item where `offsets_of` says; so rank 0 can pickle `.metadata` before anything is written.
"""

import collections
import io
import json
import pickle

import torch
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint import metadata as metadata_of_torch
from torch.distributed.checkpoint.filesystem import _StorageInfo

from .dtypes import is_storable, item_size
from .errors import FlashCheckpointError
from .tree import Pickled, flatten

# A part of a state: what this rank has of a name. `value` is a local tensor, or a value that is no tensor.
Part = collections.namedtuple("Part", "name offset is_tensor value")


class Parts:
    """What this rank has of a sharded state: `by_label`, in order, and the planner that took the state apart.

    Where a part is in the whole is only found out `with_offsets`: a plan needs it, a save does not.
    """

    def __init__(self, state_dict, with_offsets=False):
        self.planner = checkpoint.DefaultSavePlanner(dedup_save_to_lowest_rank=True)
        self.planner.set_up_planner(state_dict, is_coordinator=True)
        self.by_label = collections.OrderedDict()
        for name, value in self.planner.state_dict.items():
            for label, part in _parts_of(name, value, with_offsets):
                self.by_label[label] = part

    def key(self):
        """Equal for states that have the same plan."""
        return tuple(
            (label, part.value.dtype, part.value.shape) if part.is_tensor else label
            for label, part in self.by_label.items()
        )


class RankPlan:
    """What one rank writes. `labels` are its items in the order of the file.

    `local` is what a restore from memory needs to know. `metadata` is the whole one on rank 0, else None.
    """

    def __init__(self, rank, labels, local, metadata):
        self.labels = labels
        self._rank = rank
        self._local = local
        self._metadata = metadata
        self._pickled = None
        self._lengths = None

    def state_of(self, parts):
        """The state for the slot: `items` and `metadata` for the files, `extra` for a restore from memory."""
        by_label = parts.by_label
        items, lengths = {}, []
        for label in self.labels:
            part = by_label[label]
            items[label] = part.value if part.is_tensor else _value(part.value)
            if not part.is_tensor:
                lengths.append(_value_length(weight_of(items[label])))
        if lengths != self._lengths:
            self._place_again([by_label[label] for label in self.labels])
            self._lengths = lengths
        rest = {label: part.value for label, part in by_label.items() if label not in items}
        return {"items": items, "metadata": self._pickled, "extra": {"local": self._local, "rest": rest}}

    def _place_again(self, parts):
        """Values have other lengths, so that all behind them lies elsewhere."""
        if self._metadata is not None:
            _place(self._metadata, self._rank, parts, [size_of(part.value, part.is_tensor) for part in parts])
            self._pickled = Pickled(pickle.dumps(self._metadata))
        elif self._lengths is not None:
            raise FlashCheckpointError(
                "a value that exists only on rank %d has grown since the first save, and its place in the file is "
                "fixed; save it as a tensor, or on rank 0 too" % self._rank
            )


def local_description(parts):
    """What this rank tells rank 0: the planner's plan, and label and size of each item."""
    plan = parts.planner.create_local_plan()
    labels, sizes = {}, {}
    for label, part in parts.by_label.items():
        labels[(part.name, part.offset)] = label
        sizes[label] = size_of(part.value, part.is_tensor)
    return {"plan": plan, "labels": labels, "sizes": sizes}


def plan_for_all(planner, descriptions):
    """What rank 0 decides: for each rank its labels; and the whole metadata."""
    plans, metadata = planner.create_global_plan([description["plan"] for description in descriptions])
    metadata.storage_data = {}
    if hasattr(metadata_of_torch, "StorageMeta"):
        metadata.storage_meta = metadata_of_torch.StorageMeta()
    version = getattr(checkpoint.filesystem, "CURRENT_DCP_VERSION", None)
    if version is not None:
        metadata.version = version
    labels_of_ranks = []
    for rank, (plan, description) in enumerate(zip(plans, descriptions)):
        indices = [(item.index.fqn, _tuple(item.index.offset)) for item in plan.items]
        labels = [description["labels"][index] for index in indices]
        parts = [Part(name, offset, None, None) for name, offset in indices]
        _place(metadata, rank, parts, [description["sizes"][label] for label in labels])
        labels_of_ranks.append(labels)
    return labels_of_ranks, metadata


def local_metadata(parts, plan):
    """Metadata of what this rank has, for a restore from memory, and where in the slot it is. Pickled."""
    state = {}
    for name, value in parts.planner.state_dict.items():
        if hasattr(value, "local_shards"):
            # A rank may have no shard of it.
            state[name] = metadata_of_torch.TensorStorageMetadata(
                properties=_properties(value.metadata().tensor_properties), size=value.metadata().size, chunks=[]
            )
    for item in plan.items:
        name, data = item.index.fqn, item.tensor_data
        if data is None:
            state[name] = metadata_of_torch.BytesStorageMetadata()
        elif name in state:
            state[name].chunks.append(data.chunk)
        else:
            state[name] = metadata_of_torch.TensorStorageMetadata(data.properties, data.size, [data.chunk])
    places = {label: (part.name, part.offset) for label, part in parts.by_label.items()}
    whole = metadata_of_torch.Metadata(state_dict_metadata=state, planner_data=dict(parts.planner.mappings))
    return Pickled(pickle.dumps({"metadata": whole, "places": places}))


def offsets_of(sizes):
    """(offset, length) of the items of a file, from their sizes; the saver computes the same."""
    end, places = 0, []
    for kind, number, dimensions in sizes:
        offset = -(-end // 64) * 64
        length = _value_length(number) if kind == "value" else 768 + 64 * max(0, dimensions - 8) + number + 388
        places.append((offset, length))
        end = offset + length
    return places


def size_of(value, is_tensor):
    """What decides about the length of an item: bytes and dimensions of a tensor, or the weight of a value."""
    if is_tensor:
        return "tensor", value.numel() * item_size(value.dtype), value.dim()
    return "value", weight_of(_value(value)), 0


def weight_of(value):
    """An upper bound for the pickle of a value, in bytes; the saver computes the same."""
    if value is None or type(value) in (bool, float):
        return 16
    return _weight(json.loads("".join(flatten(value).text)))


def _weight(node):
    if node is None or type(node) in (bool, int):
        return 16
    if type(node) is str:
        return 16 + len(node.encode())
    ((kind, content),) = node.items()
    if kind == "f":
        return 16
    if kind == "i":
        return 16 + len(content)
    if kind == "p":
        return 48 + content[1]
    if kind in ("l", "t"):
        return 48 + sum(map(_weight, content))
    return 48 + sum(_weight(key) + _weight(item) for key, item in content)


def _value_length(weight):
    return -(-(weight + 384) // 512) * 512


def _place(metadata, rank, parts, sizes):
    for part, (offset, length) in zip(parts, offsets_of(sizes)):
        place = None if part.offset is None else torch.Size(part.offset)
        index = metadata_of_torch.MetadataIndex(part.name, place)
        metadata.storage_data[index] = _StorageInfo("__%d_0.distcp" % rank, offset, length)


def _parts_of(name, value, with_offsets):
    """(label, Part) of what this rank has of a name."""
    if hasattr(value, "local_shards"):
        for shard in value.local_shards():
            offset = tuple(shard.metadata.shard_offsets)
            yield "%s@%s" % (name, ",".join(map(str, offset))), _tensor_part(name, offset, shard.tensor)
    elif _is_dtensor(value):
        # Ranks outside of its mesh have nothing of it.
        if value.device_mesh.get_coordinate() is not None:
            yield name, _tensor_part(name, _offset_of(value) if with_offsets else None, value.to_local())
    elif isinstance(value, torch.Tensor):
        yield name, _tensor_part(name, (0,) * value.dim(), value)
    else:
        yield name, Part(name, None, False, value)


def _is_dtensor(value):
    return hasattr(value, "device_mesh") and hasattr(value, "to_local")


def _offset_of(value):
    try:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    except ImportError:
        # torch before 2.5.
        from torch.distributed._tensor._utils import compute_local_shape_and_global_offset

    return tuple(compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)[1])


def _tensor_part(name, offset, tensor):
    if hasattr(tensor, "wait") and hasattr(tensor, "elem"):
        # The result of a collective that may still run.
        tensor = tensor.wait()
    if not is_storable(tensor):
        raise FlashCheckpointError(
            "%s is a tensor of type %s, layout %s and dtype %s, which torch.distributed.checkpoint cannot store; "
            "remove it from the state" % (name, type(tensor).__name__, tensor.layout, tensor.dtype)
        )
    return Part(name, offset, True, tensor)


def _value(value):
    """A value as the file has it: tensors in it are in its pickle."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if not flatten(value, is_storable).tensors:
        return value
    pickled = io.BytesIO()
    _WholePickler(pickled, protocol=2).dump(value)
    return Pickled(pickled.getvalue())


class _WholePickler(pickle.Pickler):
    def reducer_override(self, value):
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        content = io.BytesIO()
        torch.save(value.cpu() if type(value) is torch.Tensor else value, content)
        return torch.storage._load_from_bytes, (content.getvalue(),)


def _properties(other):
    return metadata_of_torch.TensorProperties(
        dtype=other.dtype,
        layout=other.layout,
        requires_grad=other.requires_grad,
        memory_format=other.memory_format,
        pin_memory=other.pin_memory,
    )


def _tuple(offset):
    return None if offset is None else tuple(offset)
