"""A state as text, its tensors and its odd leaves, and back.

The text is JSON. Leaves that JSON has are themselves; the rest are objects of one member, named by its first letter:

    {"f": "0x1.8p+1"}           float            {"d": [[key, value], ...]}   dict
    {"i": "9007199254740993"}   large int        {"o": [[key, value], ...]}   OrderedDict
    {"T": 3}                    tensor number 3  {"l": [...]}, {"t": [...]}   list, tuple
    {"p": [offset, length]}     an odd leaf: anything else, pickled into the skeleton of the slot

An OrderedDict with attributes is an odd leaf too. In the pickle of one, the persistent id of a tensor is its number.
The saver makes the pickle of a file from this text, so that no tensor is pickled while training waits.
"""

import collections
import io
import json
import pickle
import sys

from .errors import FlashCheckpointError
from .notices import say_once

# Containers in containers that the saver reads; what is deeper is pickled.
_DEEPEST = 24

# Plain items of a list or tuple that go into the text at most; more are pickled, which takes a tenth of the time.
_MOST_ITEMS = 100000
_PLAIN = frozenset((type(None), bool, int, float, str, bytes))

# From here on, numbers of JSON are not the same for every reader.
_LARGEST_NUMBER = 1 << 53

# How the text of a dict and of an OrderedDict begins.
_DICT, _ORDERED = '{"d":[', '{"o":['

_text_of = json.encoder.encode_basestring_ascii


class Flat:
    """A state, taken apart. `tensors` are those of the state itself; nothing is copied but odd leaves."""

    __slots__ = ("text", "tensors", "names", "odd", "odd_bytes", "keys", "nodes")

    def __init__(self, with_names):
        # The text, in parts.
        self.text = []
        self.tensors = []
        # The name of each tensor: the keys on the way to it, joined by dots. None when they were not asked for.
        self.names = [] if with_names else None
        # Pickles of odd leaves, and their bytes together.
        self.odd = []
        self.odd_bytes = 0
        # The keys of each dict, in the order of the text: two states with the same keys have the same names.
        self.keys = []
        # Values of the text, keys included: those that the saver counts.
        self.nodes = 1


class Pickled(bytes):
    """A pickle of any protocol, which goes into a state as the value that it is of: for what does not change."""


class _NoText(Exception):
    """A key or a string that JSON does not have."""


def flatten(state, is_tensor=None, with_names=False):
    """Takes a state apart. `is_tensor(value)` says whether a value becomes a tensor of the slot.

    Raises FlashCheckpointError for a state that cannot be pickled where it must be.
    """
    flat = Flat(with_names)
    try:
        _Walk(flat, is_tensor).value(state, 0)
    except RecursionError:
        raise FlashCheckpointError("the state contains itself, or is nested too deeply to be saved")
    return flat


class _Walk:
    def __init__(self, flat, is_tensor):
        self._flat = flat
        self._is_tensor = is_tensor or (lambda value: False)
        torch = sys.modules.get("torch")
        # Types of which most values are tensors: asked first.
        self._tensor_types = (torch.Tensor, torch.nn.Parameter) if hasattr(torch, "nn") else ()
        self._path = []

    def value(self, value, depth):
        kind = type(value)
        if kind in self._tensor_types:
            self._tensor_or_odd(value)
        elif kind is dict or kind is collections.OrderedDict:
            self._dict(value, _DICT if kind is dict else _ORDERED, depth)
        elif kind is list or kind is tuple:
            self._items(value, '{"l":[' if kind is list else '{"t":[', depth)
        else:
            try:
                self._flat.text.append(_leaf(value, kind))
            except _NoText:
                self._tensor_or_odd(value)

    def _dict(self, items, start, depth):
        flat, tensor_types, is_tensor = self._flat, self._tensor_types, self._is_tensor
        text, tensors, path = flat.text, flat.tensors, self._path
        keys = list(items)
        try:
            names = [_text_of(key) if type(key) is str and key.isascii() else _leaf(key, type(key)) for key in keys]
        except _NoText:
            return self._odd(items)
        # A state dict of a module has its versions as an attribute, `_metadata`.
        if depth >= _DEEPEST or start is _ORDERED and items.__dict__:
            return self._odd(items)
        flat.keys.append(keys)
        flat.nodes += 2 * len(keys)
        text.append(start)
        separator = "["
        for key, name, item in zip(keys, names, items.values()):
            # Most of a state are tensors.
            if type(item) in tensor_types and is_tensor(item):
                text.append('%s%s,{"T":%d}]' % (separator, name, len(tensors)))
                tensors.append(item)
                if flat.names is not None:
                    flat.names.append(".".join(path + [str(key)]))
            else:
                text.append(separator + name + ",")
                path.append(str(key))
                self.value(item, depth + 1)
                path.pop()
                text.append("]")
            separator = ",["
        text.append("]}")

    def _items(self, items, start, depth):
        if depth >= _DEEPEST:
            return self._odd(items)
        if len(items) > _MOST_ITEMS and _PLAIN.issuperset(map(type, items)):
            # The order of a sampler. No tensor is in it, so that no item of it must be looked at.
            return self._odd(Pickled(pickle.dumps(items, protocol=2)))
        text = self._flat.text
        self._flat.nodes += len(items)
        text.append(start)
        separator = ""
        for index, item in enumerate(items):
            text.append(separator)
            separator = ","
            self._path.append(str(index))
            self.value(item, depth + 1)
            self._path.pop()
        text.append("]}")

    def _tensor_or_odd(self, value):
        if self._is_tensor(value):
            self._flat.text.append('{"T":%d}' % self._tensor(value))
        else:
            self._odd(value)

    def _tensor(self, value):
        flat = self._flat
        flat.tensors.append(value)
        if flat.names is not None:
            flat.names.append(".".join(self._path))
        return len(flat.tensors) - 1

    def _odd(self, value):
        flat = self._flat
        pickled = value if type(value) is Pickled else self._pickled(value)
        flat.text.append('{"p":[%d,%d]}' % (flat.odd_bytes, len(pickled)))
        flat.odd.append(pickled)
        flat.odd_bytes += len(pickled)

    def _pickled(self, value):
        pickled = io.BytesIO()
        # The saver puts it into a pickle of protocol 2.
        pickler = _Pickler(pickled, protocol=2)
        pickler.is_tensor, pickler.tensor = self._is_tensor, self._tensor
        tensors = len(self._flat.tensors)
        try:
            pickler.dump(value)
        except RecursionError:
            raise
        except Exception as error:
            raise FlashCheckpointError(
                "a value of type %s cannot be pickled, so the state cannot be saved: %s; remove it from the state"
                % (type(value).__name__, error)
            )
        pickled = pickled.getvalue()
        # A state dict is some bytes for each tensor.
        if len(pickled) > (1 << 20) + 200 * (len(self._flat.tensors) - tensors):
            say_once(
                "odd",
                "a value of type %s in the state is pickled at each save (%d bytes), which blocks training; tensors "
                "are not, so convert it to a tensor" % (type(value).__name__, len(pickled)),
            )
        return pickled


class _Pickler(pickle.Pickler):
    """Pickles what is not plain, but not the tensors in it."""

    def persistent_id(self, value):
        return self.tensor(value) if self.is_tensor(value) else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, number):
        if type(number) is not int or not 0 <= number < len(self.tensors):
            raise ValueError("a pickle refers to tensor %.40r; there are %d" % (number, len(self.tensors)))
        return self.tensors[number]


def _leaf(value, kind):
    """The text of a plain leaf. Raises _NoText for other values."""
    if kind is str:
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise _NoText
        return _text_of(value)
    if kind is int:
        return str(value) if -_LARGEST_NUMBER < value < _LARGEST_NUMBER else '{"i":"%s"}' % _decimal(value)
    if kind is float:
        return '{"f":"%s"}' % value.hex()
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    raise _NoText


def _decimal(value):
    # Python refuses to write thousands of digits.
    if value.bit_length() > 4096:
        raise _NoText
    return str(value)


def unflatten(tree, tensors, odd_leaf):
    """The state of a text that was read as JSON. `odd_leaf(offset, length)` gives the bytes of a pickle.

    Raises ValueError when it is no state.
    """
    if tree is None or isinstance(tree, (bool, int, str)):
        return tree
    if not isinstance(tree, dict) or len(tree) != 1:
        raise ValueError("%.80r is not a part of a state" % (tree,))
    ((kind, content),) = tree.items()
    try:
        if kind == "T":
            if not 0 <= content < len(tensors):
                raise ValueError("tensor %d does not exist; there are %d" % (content, len(tensors)))
            return tensors[content]
        if kind in ("d", "o"):
            result = {} if kind == "d" else collections.OrderedDict()
            for key, value in content:
                if type(key) is not str:
                    key = unflatten(key, (), odd_leaf)
                # Most of a state are tensors.
                index = value.get("T", -1) if type(value) is dict else -1
                if type(index) is int and 0 <= index < len(tensors):
                    result[key] = tensors[index]
                else:
                    result[key] = unflatten(value, tensors, odd_leaf)
            return result
        if kind == "f":
            return float.fromhex(content)
        if kind in ("l", "t"):
            items = [unflatten(item, tensors, odd_leaf) for item in content]
            return items if kind == "l" else tuple(items)
        if kind == "i":
            return int(content)
        if kind == "p":
            offset, length = content
            unpickler = _Unpickler(io.BytesIO(odd_leaf(offset, length)))
            unpickler.tensors = tensors
            return unpickler.load()
    except (TypeError, KeyError) as error:
        raise ValueError("%.80r is not a part of a state: %s" % (tree, error))
    raise ValueError("%.80r is not a part of a state" % (tree,))
