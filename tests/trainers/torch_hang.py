#!/usr/bin/env python3
"""DistributedDataParallel over gloo, which hangs at step --at of round 0 as --kind says, and declares nothing.

`told.RANK` in PROBE_OUT has the time of a rank's last step, for the tests.
"""
import argparse
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

OUT = os.environ.get("PROBE_OUT", ".")
RANK = int(os.environ["RANK"])

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--kind", default="healthy",
                    choices=["healthy", "loader", "loader-process", "skip-backward", "skip-collective", "stop",
                             "deep-backward"])
parser.add_argument("--who", type=int, default=0, metavar="RANK")
parser.add_argument("--at", type=int, default=10, metavar="STEP", help="a multiple of 5")
parser.add_argument("--steps", type=int, default=30)
args = parser.parse_args()


def is_at(kind, step):
    return (args.kind, args.who, args.at) == (kind, RANK, step) and os.environ.get("DLROVER_ROUND", "0") == "0"


class Shards(Dataset):
    def __len__(self):
        return args.steps

    def __getitem__(self, index):
        if is_at("loader", index + 1) or is_at("loader-process", index + 1):
            read_sample()
        return torch.ones(8)


def read_sample():
    threading.Event().wait()


def next_batch(batches):
    return next(batches)


class Nested(torch.autograd.Function):
    """A backward within a backward. More than 60 of them are run by a thread of torch's own, for which the main thread
    waits, as it does for that of a device."""

    @staticmethod
    def forward(ctx, inputs, depth):
        ctx.depth = depth
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradients):
        if ctx.depth == 0:
            compute_gradient()
        with torch.enable_grad():
            Nested.apply(torch.ones(1, requires_grad=True), ctx.depth - 1).sum().backward()
        return gradients, None


def compute_gradient():
    threading.Event().wait()


def train_step(model, optimizer, inputs, step):
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    if is_at("stop", step):
        os.kill(os.getpid(), signal.SIGSTOP)
    if is_at("deep-backward", step):
        Nested.apply(torch.ones(1, requires_grad=True), 70).sum().backward()
    if not is_at("skip-backward", step):
        loss.backward()
    optimizer.step()
    with open(os.path.join(OUT, f"told.{RANK}"), "w"):
        pass
    if step % 5 == 0:
        dist.barrier()
    if not is_at("skip-collective", step):
        total = loss.detach()
        dist.all_reduce(total)
        # A thread of gloo still holds it for a moment. It needs the interpreter to release it, and aborts the process when
        # the interpreter has begun to end by then (torch 2.15).
        while sys.getrefcount(total) > 2:
            time.sleep(0.0005)
    if step % 5 == 0:
        dist.barrier()


def main():
    if RANK == 0:
        path = os.path.join(OUT, "run-id")
        with open(path + ".new", "w") as file:
            file.write(os.environ.get("TORCHELASTIC_RUN_ID", "none"))
        os.rename(path + ".new", path)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(DataLoader(Shards(), batch_size=1, num_workers=1 if args.kind == "loader-process" else 0))
    for step in range(1, args.steps + 1):
        train_step(model, optimizer, next_batch(batches), step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
