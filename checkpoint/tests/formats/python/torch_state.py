"""States of torch as slots, and whether two of them are equal."""

import argparse
import collections
import warnings

import torch

import case

warnings.filterwarnings("ignore")

DTYPES = (
    "bfloat16 bool complex128 complex64 float16 float32 float64 int16 int32 int64 int8 uint8 bcomplex32 bits16 bits1x8 bits2x4 "
    "bits4x2 bits8 complex32 float4_e2m1fn_x2 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu uint16 "
    "uint32 uint64"
).split()


def known():
    """The types that this torch has."""
    return [name for name in DTYPES if hasattr(torch, name)]


def item_size(name):
    return getattr(torch, name).itemsize


def raw(storage):
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes()


class TorchCase(case.Case):
    def row(self, value):
        if type(value) is not torch.Tensor:
            return None
        name, storage = str(value.dtype)[len("torch."):], value.untyped_storage()
        shape = list(value.shape)
        zeros = case.Zeros(storage.nbytes()) if storage.nbytes() > 1 << 30 else None
        data = zeros or raw(storage)
        if value.is_contiguous() and value.nbytes == storage.nbytes():
            own = getattr(self, "own", False)
            return case.Row("t%d" % len(self.rows), name, shape, data, None if own else storage._cdata)
        return case.Row("t%d" % len(self.rows), name, shape, data, storage._cdata, value.storage_offset(), value.stride())


def values(name, *shape):
    """A tensor of a type with bytes that are all different as far as the type lets them."""
    dtype = getattr(torch, name)
    count = item_size(name)
    for size in shape:
        count *= size
    high = 2 if name == "bool" else 256
    data = torch.randint(0, high, (count,), dtype=torch.uint8)
    return torch.empty(0, dtype=dtype).set_(data.untyped_storage(), 0, shape, _contiguous(shape))


def _contiguous(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(strides[::-1])


class Same:
    """Equality of states: types, strides, every bit, and which tensors share a storage or are one object."""

    def __init__(self):
        self.objects, self.storages, self.count = {}, {}, 0

    def __call__(self, expected, found, path="state"):
        assert type(expected) is type(found), (path, type(expected), type(found))
        if isinstance(expected, torch.Tensor):
            self.tensor(expected, found, path)
        elif isinstance(expected, dict):
            assert list(expected) == list(found), (path, list(expected)[:9], list(found)[:9])
            for key in expected:
                self(expected[key], found[key], "%s[%r]" % (path, key))
            if isinstance(expected, collections.OrderedDict):
                self(vars(expected), vars(found), path + ".__dict__")
        elif isinstance(expected, (list, tuple)):
            assert len(expected) == len(found), path
            for place, (one, other) in enumerate(zip(expected, found)):
                self(one, other, "%s[%d]" % (path, place))
        elif isinstance(expected, argparse.Namespace):
            self(vars(expected), vars(found), path)
        else:
            assert expected == found, (path, expected, found)
        return self.count

    def tensor(self, expected, found, path):
        def facts(tensor):
            return tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.requires_grad

        assert facts(expected) == facts(found), (path, facts(expected), facts(found))
        first, second = expected.untyped_storage(), found.untyped_storage()
        assert first.nbytes() == second.nbytes(), path
        if first.nbytes() < 1 << 30:
            assert raw(first) == raw(second), path
        assert self.objects.setdefault(id(expected), found) is found, (path, "one tensor became two")
        if first.nbytes():
            assert self.storages.setdefault(first._cdata, second._cdata) == second._cdata, (path, "a shared storage became two")
        self.count += 1
