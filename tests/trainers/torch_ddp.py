#!/usr/bin/env python3
"""DistributedDataParallel on a small network: gloo on CPUs, NCCL where there are GPUs.

    dlrover-run --standalone --nproc-per-node=2 tests/trainers/torch_ddp.py
"""
import argparse
import os
import signal
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--checkpoint", help="file (default: one for the run id, removed at the end)")
    parser.add_argument("--die-at", type=int, default=-1, metavar="STEP", help="in the first attempt only")
    parser.add_argument("--die-rank", type=int, default=1, metavar="RANK")
    parser.add_argument("--die-how", choices=["kill", "exit3", "segv", "raise"], default="kill")
    return parser.parse_args()


def die(how):
    print(f"rank {dist.get_rank()}: dies on purpose ({how})", flush=True)
    if how == "raise":
        raise RuntimeError(f"rank {dist.get_rank()} was asked to fail")
    if how == "exit3":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGSEGV if how == "segv" else signal.SIGKILL)


def batch(step, rank, world, device):
    """Rank's slice of the step's batch: points in a plane, labelled by whether a circle holds them."""
    generator = torch.Generator().manual_seed(step)
    points = torch.randn(256, 2, generator=generator)
    labels = (points.square().sum(1, keepdim=True) < 1.4).float()
    return points[rank::world].to(device), labels[rank::world].to(device)


def all_are_done(world):
    """Waits for every rank, over the store. With gloo a rank that closes its connections while data for it is still on
    its way resets them, and a rank that is still in the last collective fails, although the training is over."""
    store = dist.distributed_c10d._get_default_store()
    if store.add("all_are_done/count", 1) == world:
        store.set("all_are_done", "yes")
    store.wait(["all_are_done"])


def references(tensors):
    return [sys.getrefcount(tensor) for tensor in tensors]


@record
def main():
    args = arguments()
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        print(f"attempt {attempt}: {world} ranks met at {place}", flush=True)
    run = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    path = args.checkpoint or os.path.join(tempfile.gettempdir(), f"torch_ddp-{os.getuid()}-{run}.pt")

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(device)
    first = 0
    if os.path.exists(path):
        state = torch.load(path, map_location=device)
        network.load_state_dict(state["network"])
        first = state["step"]
        if rank == 0:
            print(f"attempt {attempt}: resumed from {path} at step {first}", flush=True)
    dist.barrier()  # No rank writes the checkpoint while another still reads it.
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    loss = torch.tensor(float("nan"), device=device)
    for step in range(first, args.steps):
        if attempt == 0 and (step, rank) == (args.die_at, args.die_rank):
            die(args.die_how)
        points, labels = batch(step, rank, world, device)
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(points), labels)
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) % 10 == 0:
            torch.save({"step": step + 1, "network": network.state_dict()}, path + ".new")
            os.replace(path + ".new", path)
        if rank == 0 and step % 10 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}  ({world} ranks, attempt {attempt})", flush=True)

    mine = torch.cat([p.detach().flatten() for p in network.parameters()])
    theirs = [torch.empty_like(mine) for _ in range(world)]
    total = loss.detach()
    of_collectives = [mine, total, *theirs]
    ours_alone = references(of_collectives)
    dist.all_gather(theirs, mine)
    if not all(torch.equal(mine, other) for other in theirs):
        sys.exit(f"rank {rank}: the ranks hold different weights")
    dist.all_reduce(total)
    if rank == 0:
        print(f"final loss {total.item() / world:.4f} after {args.steps} steps; "
              f"all {world} ranks hold the same weights", flush=True)
        if not args.checkpoint and os.path.exists(path):
            os.remove(path)
    all_are_done(world)
    # A thread of gloo still holds the tensors for a moment. It needs the interpreter to release them, and aborts the
    # process when the interpreter has begun to end by then (torch 2.15).
    while references(of_collectives) != ours_alone:
        time.sleep(0.001)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
