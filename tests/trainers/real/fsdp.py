"""FSDP2 with distributed checkpoints: killed after a checkpoint, resumed from it."""
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from common import die_once, say


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 4))
    for layer in model:
        fully_shard(layer, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    folder, first = os.path.join(os.environ["PROBE_OUT"], "fsdp"), 0
    if os.path.exists(os.path.join(folder, ".metadata")):
        weights, moments = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        first = 6
    for step in range(first, 12):
        die_once(step, 8)
        data = torch.Generator().manual_seed(100 * step + dist.get_rank())
        optimizer.zero_grad()
        model(torch.randn(8, 16, generator=data)).square().mean().backward()
        optimizer.step()
        if step == 5:
            weights, moments = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)
    say("fsdp", *[parameter.full_tensor() for parameter in model.parameters()])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
