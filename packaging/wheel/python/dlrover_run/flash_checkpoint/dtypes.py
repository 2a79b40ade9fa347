"""Element types of tensors by name, and which tensors are copied as they are. Needs torch."""

import torch

# As the saver knows them. Quantized types are not here: their scale is a part of the tensor, so they are pickled.
_NAMES = (
    "bfloat16 bool complex128 complex64 float16 float32 float64 int16 int32 int64 int8 uint8 bcomplex32 bits16 bits1x8 "
    "bits2x4 bits4x2 bits8 complex32 float4_e2m1fn_x2 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
    "float8_e8m0fnu uint16 uint32 uint64"
).split()

name_of = {getattr(torch, name): name for name in _NAMES if hasattr(torch, name)}
named = {name: dtype for dtype, name in name_of.items()}

_plain_types = frozenset([torch.Tensor, torch.nn.Parameter] + [c for c in [getattr(torch.nn, "Buffer", None)] if c])


def is_storable(value):
    """Whether `value` is a tensor whose elements are copied into a slot: strided, of a plain type, with memory."""
    return (
        type(value) in _plain_types and value.layout is torch.strided and value.dtype in name_of and not value.is_meta
    )


def item_size(dtype):
    """Bytes of an element."""
    return dtype.itemsize if hasattr(dtype, "itemsize") else torch.empty((), dtype=dtype).element_size()


def contiguous_strides(shape):
    """The strides of a tensor without gaps, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]
