"""A sharded model: fsdp.py FOLDER GENERATION ACTION ...

GENERATION is 1 or 2. Actions: `save STEPS` trains and saves, into memory with `memory`, and with `disk STEPS` further
steps to disk; `load` loads into a new model; both print the step and a checksum of the whole state, which is the same
for all ranks. `lonely` saves on all ranks but the last. `late` saves four times, rank 0 after the others at the
second one. `grow` saves four times, with a key that rank 1 has from the second time on, and all ranks at the last one.
With `lose`, the files of the last rank are gone when it has written them, as on a file system that the nodes do not
share.

In the first round, `save STEPS die` ends with a SIGKILL of the last rank. `save STEPS hang` waits for the disk, makes
the file `<rank>.waited` in the directory PROBE_OUT, and rests until it is killed. Later rounds go on from what they
load.
"""

import hashlib
import os
import signal
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn

from dlrover_run.flash_checkpoint import FsdpFullCheckpointer, FsdpShardCheckpointer, StorageType

warnings.simplefilter("ignore")
folder, generation, actions = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
torch.set_num_threads(1)
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    dist.init_process_group("gloo")
rank = int(os.environ.get("RANK", "0"))


def say(*words):
    """A line in one piece: those of other ranks would mix with it."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def new(lr):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(33, 65), nn.LayerNorm(65), nn.Linear(65, 7))
    if not dist.is_initialized():
        pass
    elif generation == 1:
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=lr)


def train(model, optimizer, steps):
    torch.manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 33)).square().mean().backward()
        optimizer.step()


def checksum(model, optimizer):
    from dlrover_run.flash_checkpoint import full_state

    state = full_state.state_of(model, optimizer, {})
    total = hashlib.sha256()

    def add(value):
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                total.update(str(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value:
                add(item)
        elif isinstance(value, torch.Tensor):
            total.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            total.update(repr(value).encode())

    add(state)
    return total.hexdigest()[:16]


def extra(step):
    return {
        "step": step,
        "name": "\u00e9" * 100,
        "nested": {"list": [1, {"tensor": torch.full((2, 3), float(step))}], "tuple": (1, torch.zeros(2))},
        "generator": torch.get_rng_state(),
        "scheduler": {"last_lr": [0.1] * 3, "none": None},
        "bf16": torch.full((5,), float(step), dtype=torch.bfloat16),
    }


def lose_files():
    from dlrover_run.flash_checkpoint import documents

    sum_of = documents.sum_of

    def lose(*arguments):
        summed = sum_of(*arguments)
        os.unlink(arguments[-1])
        return summed

    documents.sum_of = lose


def end_first_round(checkpointer):
    """All ranks have saved: the checksum needed all of them."""
    if "die" in actions and rank == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if "hang" in actions:
        checkpointer.wait_latest_checkpoint(60)
        with open(os.path.join(os.environ["PROBE_OUT"], "%d.waited" % rank), "w"):
            pass
        while True:
            signal.pause()


def main():
    checkpointers = {"full": FsdpFullCheckpointer, "shard": FsdpShardCheckpointer}
    kind = checkpointers["full" if "full" in actions else "shard"]
    options = {"save_timeout": float(os.environ.get("SAVE_TIMEOUT", "60"))}
    if "lose" in actions and rank == dist.get_world_size() - 1:
        lose_files()
    if "save" in actions:
        checkpointer = kind(folder, **options)
        model, optimizer = new(1e-2)
        found = checkpointer.load_checkpoint(model, optimizer)
        first = found.get("step", 0)
        if first:
            say("began", checkpointer.last_load.source, first)
        storages = [StorageType.MEMORY if "memory" in actions else StorageType.DISK]
        storages *= int(actions[actions.index("save") + 1])
        if "disk" in actions:
            storages += [StorageType.DISK] * int(actions[actions.index("disk") + 1])
        for step, storage in enumerate(storages, first + 1):
            train(model, optimizer, 1)
            result = checkpointer.save_checkpoint(step, model, optimizer, extra(step), storage_type=storage)
            say("result", bool(result), result.error)
        say("saved", step, checksum(model, optimizer))
        if os.environ.get("DLROVER_ROUND", "0") == "0":
            end_first_round(checkpointer)
    if "load" in actions:
        checkpointer = kind(folder, **options)
        model, optimizer = new(0.5)
        path = actions[actions.index("from") + 1] if "from" in actions else ""
        found = checkpointer.load_checkpoint(model, optimizer, path)
        if found:
            step = found["step"]
            assert torch.equal(found["nested"]["list"][1]["tensor"], torch.full((2, 3), float(step)))
            assert found["nested"]["tuple"][0] == 1 and found["name"] == "\u00e9" * 100, found
            assert found["scheduler"] == {"last_lr": [0.1] * 3, "none": None}
            assert torch.equal(found["bf16"], torch.full((5,), float(step), dtype=torch.bfloat16))
        say("loaded", checkpointer.last_load.source, found.get("step"), checksum(model, optimizer))
    if "lonely" in actions:
        checkpointer = kind(folder, **options)
        model, optimizer = new(1e-2)
        train(model, optimizer, 1)
        from dlrover_run.flash_checkpoint import sharded_state

        state = sharded_state.state_of(model, optimizer, extra(1))
        for step in (1, 2):
            # At the second step all ranks are there.
            if step == 2 or rank != dist.get_world_size() - 1:
                result = checkpointer.save_checkpoint(step, state)
                say("result", bool(result), result.error)
            dist.barrier()
    if "late" in actions:
        checkpointer = kind(folder, **options)
        model, optimizer = new(1e-2)
        train(model, optimizer, 1)
        from dlrover_run.flash_checkpoint import sharded_state

        for step in (1, 2, 3, 4):
            state = sharded_state.state_of(model, optimizer, extra(step))
            # At the second step rank 0 comes when the others have saved.
            if step == 2 and rank == 0:
                dist.barrier()
            result = checkpointer.save_checkpoint(step, state)
            say("result", bool(result), result.error)
            if step == 2 and rank != 0:
                dist.barrier()
            dist.barrier()
    if "grow" in actions:
        checkpointer = kind(folder, **options)
        model, optimizer = new(1e-2)
        train(model, optimizer, 1)
        for step in (1, 2, 3, 4):
            # A key that one rank has first.
            more = {"more": 1} if step == 4 or step > 1 and rank == 1 else {}
            result = checkpointer.save_checkpoint(step, model, optimizer, dict(extra(step), **more))
            say("result", bool(result), result.error)
            dist.barrier()


main()
if dist.is_initialized():
    dist.barrier()
    dist.destroy_process_group()
