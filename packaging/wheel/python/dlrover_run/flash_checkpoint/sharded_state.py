"""The state dict of a model and an optimizer that are sharded: by either generation of FSDP, or not at all."""

import contextlib
import warnings

import torch
import torch.distributed.checkpoint as checkpoint

MODEL, OPTIMIZER = "model", "optim"


def state_of(model, optimizer, extra):
    """The sharded state dict of a model and an optimizer, with what else is to be saved."""
    state = {}
    if _is_first_fsdp(model):
        fsdp = _first_fsdp()
        with _sharded(fsdp, model):
            state[MODEL] = model.state_dict()
            if optimizer is not None:
                state[OPTIMIZER] = fsdp.optim_state_dict(model, optimizer)
    else:
        from torch.distributed.checkpoint import state_dict

        state[MODEL] = state_dict.get_model_state_dict(model)
        if optimizer is not None:
            state[OPTIMIZER] = state_dict.get_optimizer_state_dict(model, optimizer)
    clashes = [key for key in extra if key in state]
    if clashes:
        raise ValueError("extra_sd has the reserved keys %s; rename them" % ", ".join(map(str, clashes)))
    state.update(extra)
    return state


def load_into(model, optimizer, reader):
    """Loads what `reader` has into a model and an optimizer. Returns what else was saved."""
    metadata = reader.read_metadata()
    extra = _places_for_extra(metadata)
    if _is_first_fsdp(model):
        _load_first_fsdp(model, optimizer, reader, extra)
    else:
        _load(model, optimizer, reader, extra, metadata)
    return extra


def _load(model, optimizer, reader, extra, metadata):
    from torch.distributed.checkpoint import state_dict

    has_optimizer = any(path[0] == OPTIMIZER for path in metadata.planner_data.values())
    wanted = dict(extra)
    wanted[MODEL] = state_dict.get_model_state_dict(model)
    if optimizer is not None and has_optimizer:
        wanted[OPTIMIZER] = state_dict.get_optimizer_state_dict(model, optimizer)
    read(wanted, reader)
    state_dict.set_model_state_dict(model, wanted.pop(MODEL))
    if OPTIMIZER in wanted:
        state_dict.set_optimizer_state_dict(model, optimizer, wanted.pop(OPTIMIZER))
    extra.update(wanted)


def _load_first_fsdp(model, optimizer, reader, extra):
    from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict

    fsdp = _first_fsdp()
    with _sharded(fsdp, model):
        wanted = dict(extra)
        wanted[MODEL] = model.state_dict()
        read(wanted, reader)
        saved = wanted.pop(MODEL)
        model.load_state_dict(saved)
        if optimizer is not None:
            found = load_sharded_optimizer_state_dict(
                model_state_dict=saved, optimizer_key=OPTIMIZER, storage_reader=reader
            )
            flattened = fsdp.optim_state_dict_to_load(model, optimizer, found[OPTIMIZER])
            optimizer.load_state_dict(flattened)
    extra.update(wanted)


def read(state, reader):
    """Reads what is saved into the tensors of `state`. With several ranks, all of them call it."""
    with warnings.catch_warnings():
        # That there is no process group.
        warnings.simplefilter("ignore")
        if hasattr(checkpoint, "load"):
            checkpoint.load(state, storage_reader=reader)
        else:
            # torch before 2.2.
            checkpoint.load_state_dict(state, reader, no_dist=not torch.distributed.is_initialized())


def _places_for_extra(metadata):
    """A dict for what is neither of the model nor of the optimizer; values are replaced when it is read."""
    extra = {}
    for name, path in metadata.planner_data.items():
        if path[0] in (MODEL, OPTIMIZER):
            continue
        saved = metadata.state_dict_metadata[name]
        value = None
        if hasattr(saved, "size"):
            value = torch.empty(saved.size, dtype=saved.properties.dtype)
        place = extra
        for step, following in zip(path, path[1:]):
            # As torch takes nested states apart: texts are keys of dicts, numbers places in lists.
            empty = {} if isinstance(following, str) else []
            place = _child(place, step, empty)
        _put(place, path[-1], value)
    return extra


def _child(place, key, empty):
    if isinstance(place, list):
        _extend(place, key)
        if place[key] is None:
            place[key] = empty
        return place[key]
    return place.setdefault(key, empty)


def _put(place, key, value):
    if isinstance(place, list):
        _extend(place, key)
    place[key] = value


def _extend(items, index):
    while len(items) <= index:
        items.append(None)


def _first_fsdp():
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel


def _is_first_fsdp(model):
    try:
        fsdp = _first_fsdp()
    except ImportError:
        return False
    return any(isinstance(module, fsdp) for module in model.modules())


@contextlib.contextmanager
def _sharded(fsdp, model):
    from torch.distributed.fsdp import StateDictType

    with fsdp.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        yield
