"""The guide's script for FSDP, with a model around it: guide_fsdp.py FOLDER STEPS [die|hang] [replica]

Loads, then trains and saves STEPS more, and prints a checksum of each. In the first round, with `die` the last rank is
killed at the end; with `hang` ranks wait for the disk, and with `replica` until each node has the newest step of another
one; then they make the file `<rank>.waited` in the directory PROBE_OUT, and rest until they are killed.
"""

import gc
import hashlib
import os
import signal
import sys
import time
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
checkpoint_dir, steps, is_to = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
save_memory_interval, save_storage_interval = 1, 5
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
model = FSDP(torch.nn.Sequential(torch.nn.Linear(33, 65), torch.nn.Linear(65, 7)), device_id=torch.device("cpu"))
# What is loaded has another one.
optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
checkpointer = FsdpShardCheckpointer(checkpoint_dir, replica_count=1 if "replica" in is_to else 0)


def say(*words):
    """A line in one piece: those of other ranks would mix with it."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def checksum():
    """Of all bytes, which is the same for all ranks, and the sum of the absolute values."""
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        states = [model.state_dict()] + list(FSDP.optim_state_dict(model, optimizer)["state"].values())
    tensors = [state[name] for state in states for name in sorted(state)]
    total = hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors))
    return "%s %.12f" % (total.hexdigest()[:16], sum(tensor.double().abs().sum().item() for tensor in tensors))


def train(first):
    for step in range(first, first + steps):
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
        say("saved", step, checksum())


def load():
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state_dict = {
            "model": model.state_dict(),
            "step": 0,
        }
        storage_reader = checkpointer.get_storage_reader()
        if not storage_reader:
            return 0
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
    say("loaded", state_dict["step"], checksum(), checkpointer.last_load.source)
    return state_dict["step"]


def await_replica(step):
    """There is no event for it: a replica is nothing that a worker waits for."""
    own = checkpointer._identity.shard
    while True:
        status, _ = checkpointer._saver._connection.request({"type": "status"}, "status", time.monotonic() + 60)
        others = [shard for shard in status["shards"] if shard["shard"] != own]
        if any((slot["state"], slot["step"]) == ("whole", step) for shard in others for slot in shard["slots"]):
            return
        time.sleep(0.01)


def end_first_round(step):
    if "die" in is_to and dist.get_rank() == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if "hang" in is_to:
        checkpointer.wait_latest_checkpoint(60)
        if "replica" in is_to:
            await_replica(step)
        with open(os.path.join(os.environ["PROBE_OUT"], "%d.waited" % dist.get_rank()), "w"):
            pass
        while True:
            signal.pause()


began = load()
if not began:
    optimizer.param_groups[0]["lr"] = 1e-2
train(began + 1)
dist.barrier()
if os.environ.get("DLROVER_ROUND", "0") == "0":
    end_first_round(began + steps)
dist.destroy_process_group()
# The model holds the group, so gloo's threads live on: torch aborts some of the processes whose interpreter ends before
# these threads (pytorch/pytorch#190489).
del checkpointer, model, optimizer
gc.collect()
