"""A training loop of Accelerate, resumed from the state that it has saved."""
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

from common import die_once, say


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(6)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    points = TensorDataset(torch.randn(64, 8, generator=torch.Generator().manual_seed(7)))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, DataLoader(points, 4), scheduler)
    folder, first = os.path.join(os.environ["PROBE_OUT"], "accelerate"), 0
    if os.path.exists(os.path.join(folder, "done")):
        accelerator.load_state(folder)
        first = 2
    for epoch in range(first, 4):
        for step, (inputs,) in enumerate(loader):
            die_once(10 * epoch + step, 23)
            with accelerator.accumulate(model):
                loss = model(inputs).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        if epoch == 1:
            accelerator.save_state(folder)
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                open(os.path.join(folder, "done"), "w").close()
            accelerator.wait_for_everyone()
    say("accelerate_loop", *model.parameters())
    accelerator.end_training()


if __name__ == "__main__":
    main()
