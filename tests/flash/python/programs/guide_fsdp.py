"""The guide's script for FSDP, with a model around it: guide_fsdp.py FOLDER save|load|both

`both` saves in its first round, in which the last rank is killed, and loads in the next one.
"""

import os
import signal
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dist_cp
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

import dlrover_run.shim  # noqa: F401
from dlrover.trainer.torch.flash_checkpoint.fsdp import (
    FsdpShardCheckpointer,
    StorageType,
)

warnings.simplefilter("ignore")
checkpoint_dir, action = sys.argv[1:]
is_to_die = action == "both" and os.environ.get("DLROVER_ROUND", "0") == "0"
if action == "both":
    action = "save" if is_to_die else "load"
save_memory_interval, save_storage_interval = 1, 5
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
model = FSDP(torch.nn.Sequential(torch.nn.Linear(33, 65), torch.nn.Linear(65, 7)), device_id=torch.device("cpu"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2 if action == "save" else 0.5)


def say(*words):
    """A line in one piece: those of other ranks would mix with it."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def total():
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        states = [model.state_dict()] + list(FSDP.optim_state_dict(model, optimizer)["state"].values())
    return "%.12f" % sum(tensor.double().abs().sum().item() for state in states for tensor in state.values())


def save():
    checkpointer = FsdpShardCheckpointer(checkpoint_dir)
    for step in range(1, 8):
        torch.manual_seed(step + dist.get_rank())
        optimizer.zero_grad()
        model(torch.randn(16, 33)).square().mean().backward()
        optimizer.step()

        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            state_dict = {
                "model": model.state_dict(),
                "optim": FSDP.optim_state_dict(model, optimizer),
                "step": step,
            }
            ckpt_dir = os.path.join(checkpoint_dir, str(step))
            if step % save_memory_interval == 0:
                checkpointer.save_checkpoint(
                    step, state_dict, ckpt_dir, storage_type=StorageType.MEMORY
                )
            if step % save_storage_interval == 0:
                checkpointer.save_checkpoint(
                    step, state_dict, ckpt_dir, storage_type=StorageType.DISK
                )
        say("saved", step, total())


def load():
    checkpointer = FsdpShardCheckpointer(checkpoint_dir)

    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state_dict = {
            "model": model.state_dict(),
            "step": 0,
        }
        storage_reader = checkpointer.get_storage_reader()
        if not storage_reader:
            return
        dist_cp.load_state_dict(
            state_dict=state_dict,
            storage_reader=storage_reader,
        )
        model.load_state_dict(state_dict["model"])

        optim_state = load_sharded_optimizer_state_dict(
            model_state_dict=state_dict["model"],
            optimizer_key="optim",
            storage_reader=storage_reader,
        )

        flattened_osd = FSDP.optim_state_dict_to_load(
            model, optimizer, optim_state["optim"]
        )
        optimizer.load_state_dict(flattened_osd)
    say("loaded", state_dict["step"], total(), checkpointer.last_load.source)


save() if action == "save" else load()
dist.barrier()
if is_to_die and dist.get_rank() == dist.get_world_size() - 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
