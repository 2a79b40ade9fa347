"""The whole state dict of a model that is sharded, and of its optimizer."""

from . import sharded_state

MODEL, OPTIMIZER = "model", "optimizer"


def state_of(model, optimizer, extra):
    """Gathers the state dict on every rank. All ranks call it."""
    state = dict(extra)
    with _full(model) as first_fsdp:
        if first_fsdp:
            state[MODEL] = model.state_dict()
            if optimizer is not None:
                state[OPTIMIZER] = first_fsdp.optim_state_dict(model, optimizer)
            return state
    from torch.distributed.checkpoint import state_dict

    options = state_dict.StateDictOptions(full_state_dict=True)
    state[MODEL] = state_dict.get_model_state_dict(model, options=options)
    if optimizer is not None:
        state[OPTIMIZER] = state_dict.get_optimizer_state_dict(model, optimizer, options=options)
    return state


def load_into(model, optimizer, state):
    """Loads a whole state dict, which every rank has. Returns what else is in it."""
    state = dict(state)
    saved, saved_optimizer = state.pop(MODEL, {}), state.pop(OPTIMIZER, None)
    with _full(model) as first_fsdp:
        if first_fsdp:
            if optimizer is not None and saved_optimizer is not None:
                saved_optimizer = first_fsdp.optim_state_dict_to_load(
                    model=model, optim=optimizer, optim_state_dict=saved_optimizer
                )
            model.load_state_dict(saved)
            if optimizer is not None and saved_optimizer is not None:
                optimizer.load_state_dict(saved_optimizer)
            return state
    from torch.distributed.checkpoint import state_dict

    options = state_dict.StateDictOptions(full_state_dict=True)
    state_dict.set_model_state_dict(model, saved, options=options)
    if optimizer is not None and saved_optimizer is not None:
        state_dict.set_optimizer_state_dict(model, optimizer, saved_optimizer, options=options)
    return state


class _full:
    """The class of FSDP of the first generation, set to whole state dicts, when `model` is one; else None."""

    def __init__(self, model):
        self._context = None
        if sharded_state._is_first_fsdp(model):
            self._fsdp = sharded_state._first_fsdp()
            from torch.distributed.fsdp import FullStateDictConfig, StateDictType
            from torch.distributed.fsdp.api import FullOptimStateDictConfig

            self._context = self._fsdp.state_dict_type(
                model,
                StateDictType.FULL_STATE_DICT,
                FullStateDictConfig(rank0_only=False),
                FullOptimStateDictConfig(rank0_only=False),
            )

    def __enter__(self):
        if self._context is None:
            return None
        self._context.__enter__()
        return self._fsdp

    def __exit__(self, *error):
        return self._context.__exit__(*error) if self._context is not None else None
