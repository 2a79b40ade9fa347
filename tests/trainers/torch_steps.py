#!/usr/bin/env python3
"""Twenty iterations of the optimizers that are named, on CPUs: torch_steps.py [sgd] [adam] [lbfgs] [--closure] ..."""
import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("optimizers", nargs="*", help="sgd, adam, lbfgs")
parser.add_argument("--closure", action="store_true")
parser.add_argument("--ddp", action="store_true")
parser.add_argument("--workers", action="store_true", help="load data in processes")
arguments = parser.parse_args()

KINDS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "lbfgs": torch.optim.LBFGS}

network = torch.nn.Linear(8, 1)
if arguments.ddp:
    torch.distributed.init_process_group("gloo")
    network = torch.nn.parallel.DistributedDataParallel(network)
optimizers = [KINDS[name](network.parameters(), lr=0.01) for name in arguments.optimizers]
data = TensorDataset(torch.randn(160, 8), torch.randn(160, 1))
for inputs, targets in DataLoader(data, batch_size=8, num_workers=2 if arguments.workers else 0):

    def closure():
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(network(inputs), targets)
        loss.backward()
        return loss

    for optimizer in optimizers:
        if arguments.closure or isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
if arguments.ddp:
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
print("done")
