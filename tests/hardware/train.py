"""Trains a small network on the first GPU, alone or beside other ranks, and does what --kind says at step --at.

    steps           nothing
    die             rank 0 kills itself in the first attempt
    kernel          rank 0 starts a kernel that does not end, and waits for its result
    skip            rank 0 does not join an all-reduce (gloo, on the CPU)
    nccl            one rank: an all-reduce behind a kernel that does not end

Each attempt writes `attempt.N.rank.R` into HARDWARE_OUT: pid, time of the first step, environment.
"""

import argparse
import json
import os
import signal
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--kind", default="steps", choices=["steps", "die", "kernel", "skip", "nccl"])
parser.add_argument("--at", type=int, default=10)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--pause", type=float, default=0.05, help="seconds after a step")
args = parser.parse_args()

OUT = os.environ["HARDWARE_OUT"]
RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def tell(name, **facts):
    path = os.path.join(OUT, name)
    with open(path + ".new", "w") as file:
        json.dump(facts, file)
    os.rename(path + ".new", path)


def endless_kernel():
    # Cycles of the device: some decades.
    for _ in range(4):
        torch.cuda._sleep(2**61)


def train_step(model, optimizer, step):
    optimizer.zero_grad()
    loss = model(torch.randn(64, 32, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    is_mine = RANK == 0 and ATTEMPT == 0 and step == args.at
    if args.kind == "die" and is_mine:
        torch.cuda.synchronize()
        tell("killed", at=time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)
    if args.kind in ("kernel", "nccl") and is_mine:
        endless_kernel()
    if args.kind == "nccl":
        dist.all_reduce(loss.detach())
    value = loss.item()
    if dist.get_world_size() > 1:
        if not (args.kind == "skip" and is_mine):
            dist.all_reduce(torch.tensor(value))
        # Without this the next all-reduce of a rank that has skipped one meets the last one of the others.
        dist.barrier()
    return value


def main():
    dist.init_process_group("nccl" if dist_is_alone() else "gloo")
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(args.steps):
        loss = train_step(model, optimizer, step)
        if step == 0:
            tell("attempt.%d.rank.%d" % (ATTEMPT, RANK), pid=os.getpid(), at=time.monotonic(),
                 visible=os.environ.get("CUDA_VISIBLE_DEVICES"), loss=loss)
        time.sleep(args.pause)
    dist.destroy_process_group()


def dist_is_alone():
    # NCCL lets no two ranks share a device.
    return os.environ["WORLD_SIZE"] == "1"


if __name__ == "__main__":
    main()
