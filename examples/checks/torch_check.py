#!/usr/bin/env python3
"""A check of a group of nodes with torch, for `--check-command`: matrix products and an all-reduce over nccl (gloo
where there is no CUDA), the way training uses them.

    dlrover-run --network-check --check-command 'python3 torch_check.py' ...

What it is told and what it answers: probes/src/wire/command.rs. DLROVER_CHECK_MIB sets the size of the all-reduce
(64 MiB). It has to run to its end on all members; a member that hangs is killed by dlrover-run.
"""

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

ROUNDS = 5


def progress(done: int, total: int) -> None:
    print(json.dumps({"progress": {"bytes": done, "total": total}}), flush=True)


def main() -> int:
    request = json.loads(sys.stdin.readline() or "{}")
    seed = int(request.get("seed", os.environ.get("DLROVER_CHECK_SEED", "0")))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)

    def settle() -> None:
        if cuda:
            torch.cuda.synchronize()

    # Whole numbers that are small: the product is exact, and its sum is known from the factors.
    torch.manual_seed(seed % 2**31)
    left = torch.randint(-4, 5, (512, 512)).float().to(device)
    right = torch.randint(-4, 5, (512, 512)).float().to(device)
    product = left @ right
    expected = left.sum(0).double() @ right.sum(1).double()
    if product.double().sum().item() != expected.item():
        print("wrong arithmetic: a product of matrices has a wrong sum", file=sys.stderr)
        return 1

    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    small = torch.ones(1, device=device)
    latencies = []
    for _ in range(20):
        settle()
        began = time.perf_counter()
        dist.all_reduce(small)
        settle()
        latencies.append(time.perf_counter() - began)

    count = (int(os.environ.get("DLROVER_CHECK_MIB", "64")) << 20) // 4
    pattern = (torch.arange(count, device=device) + seed % 1000).remainder(7).float()
    total = ROUNDS * count * 4
    times, is_right = [], True
    progress(0, total)
    for done in range(1, ROUNDS + 1):
        numbers = pattern * (rank + 1)
        settle()
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(numbers)
        settle()
        times.append(time.perf_counter() - began)
        is_right &= bool(torch.equal(numbers, pattern * (world * (world + 1) // 2)))
        progress(done * count * 4, total)

    # All of them hear of one that is wrong.
    verdict = torch.tensor([int(is_right)], device=device)
    dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
    # A thread of gloo still holds the tensors for a moment. It needs the interpreter to release them, and aborts the
    # process when the interpreter has begun to end by then (torch 2.15): a healthy node would fail the check.
    while max(sys.getrefcount(small), sys.getrefcount(numbers), sys.getrefcount(verdict)) > 2:
        time.sleep(0.001)
    answer = {
        "version": 1,
        "comm_ms": sum(times) * 1000,
        "latency_us": statistics.median(latencies) * 1e6,
        "bytes_per_second": count * 4 / statistics.median(times),
        "checksum_ok": bool(verdict.item()),
    }
    dist.destroy_process_group()
    print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
