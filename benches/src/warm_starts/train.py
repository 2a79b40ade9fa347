"""A DDP training that goes on from its checkpoint, for the bench `warm`.

It writes two records to the pipe of the bench (stamps.rs): when the script begins, and after its first optimizer step.
"""
import os
import struct
import time

PIPE = os.open(os.environ["DLROVER_BENCH_STAMPS"], os.O_WRONLY)


def stamp(is_step):
    os.write(PIPE, struct.pack("<IiQ", is_step, os.getpid(), time.monotonic_ns()))


stamp(False)

import torch
import torch.distributed as dist
from torch import nn

CHECKPOINT = os.environ["DLROVER_BENCH_CHECKPOINT"]
DEVICE = os.environ["DLROVER_BENCH_DEVICE"]


class Files:
    """As a script without this project's client does it."""

    def load(self):
        return torch.load(CHECKPOINT, map_location=DEVICE) if os.path.exists(CHECKPOINT) else {}

    def save(self, step, state):
        if dist.get_rank() == 0:
            torch.save(state, CHECKPOINT + ".new")
            os.rename(CHECKPOINT + ".new", CHECKPOINT)


class Memory:
    """All ranks of a node restore what the first one has saved."""

    def __init__(self):
        from dlrover_run.flash_checkpoint import DdpCheckpointer

        self.checkpointer = DdpCheckpointer(CHECKPOINT + ".folder")

    def load(self):
        found = self.checkpointer.load_checkpoint()
        if found and self.checkpointer.last_load.source != "memory":
            raise SystemExit("the state was restored from %s" % (self.checkpointer.last_load,))
        return found

    def save(self, step, state):
        from dlrover_run.flash_checkpoint import StorageType

        result = self.checkpointer.save_checkpoint(step, state, storage_type=StorageType.MEMORY)
        if not result:
            raise SystemExit("step %d was not saved: %s" % (step, result.error))


def main():
    # NCCL lets no two ranks share a device.
    is_alone = os.environ["WORLD_SIZE"] == "1"
    dist.init_process_group("nccl" if DEVICE == "cuda" and is_alone else "gloo")
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoints = Memory() if os.environ.get("DLROVER_BENCH_FLASH") else Files()
    step = 0
    saved = checkpoints.load()
    if saved:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    if os.environ.get("TORCHELASTIC_RESTART_COUNT") != "0" and step == 0:
        raise SystemExit("no state was restored")
    model = nn.parallel.DistributedDataParallel(model)
    first = step
    while True:
        optimizer.zero_grad()
        model(torch.randn(16, 64, device=DEVICE)).square().mean().backward()
        optimizer.step()
        step += 1
        if step == first + 1:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            stamp(True)
        if step - first <= 3:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            checkpoints.save(step, state)
        time.sleep(0.02)


main()
