"""DDP on data loaders with processes of their own, by each start method."""
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from common import die_once, say


class Points(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        point = torch.randn(8, generator=generator)
        return point, point.sum().unsqueeze(0)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(2)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = os.path.join(os.environ["PROBE_OUT"], "loader.pt")
    done = 0
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        done = state["done"]
    dist.barrier()
    for epoch, method in list(enumerate(("fork", "spawn", "forkserver")))[done:]:
        points = Points()
        sampler = DistributedSampler(points)
        sampler.set_epoch(epoch)
        loader = DataLoader(points, 4, sampler=sampler, num_workers=2, multiprocessing_context=method)
        for step, (inputs, targets) in enumerate(loader):
            die_once(10 * epoch + step, 11)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        if dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "done": epoch + 1}, path + ".new")
            os.replace(path + ".new", path)
        dist.barrier()
    say("loader", *model.parameters())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
