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


def save(model, optimizer, step):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, CHECKPOINT + ".new")
    os.rename(CHECKPOINT + ".new", CHECKPOINT)


def main():
    # NCCL lets no two ranks share a device.
    is_alone = os.environ["WORLD_SIZE"] == "1"
    dist.init_process_group("nccl" if DEVICE == "cuda" and is_alone else "gloo")
    rank = dist.get_rank()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    if os.path.exists(CHECKPOINT):
        saved = torch.load(CHECKPOINT, map_location=DEVICE)
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
        if rank == 0 and step - first <= 3:
            save(model.module, optimizer, step)
        time.sleep(0.02)


main()
