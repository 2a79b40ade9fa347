"""The guide's script for DDP, with a model and a loop around it: guide_ddp.py FOLDER STEPS [die]

Prints where it began and a checksum of what it loaded and saved last. With `die` its first round ends by SIGKILL.
"""

import hashlib
import os
import signal
import sys

import torch
from dlrover.trainer.torch.flash_checkpoint.ddp import (
    DdpCheckpointer,
    StorageType,
)

checkpoint_dir, steps = sys.argv[1], int(sys.argv[2])
save_memory_interval, save_storage_interval = 1, 5

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.BatchNorm1d(512), torch.nn.Linear(512, 8))
optimizer = torch.optim.AdamW(model.parameters())


def checksum():
    total = hashlib.sha256()
    for tensor in model.state_dict().values():
        total.update(tensor.numpy().tobytes())
    for state in optimizer.state_dict()["state"].values():
        for name in sorted(state):
            total.update(state[name].numpy().tobytes())
    return total.hexdigest()[:16]


checkpointer = DdpCheckpointer(checkpoint_dir)

ckpt_dict = checkpointer.load_checkpoint()
first = 0
if ckpt_dict:
    model.load_state_dict(ckpt_dict["model"])
    optimizer.load_state_dict(ckpt_dict["optimizer"])
    first = ckpt_dict["step"]
print("loaded", checkpointer.last_load.source, first, checksum(), flush=True)

for step in range(first + 1, first + 1 + steps):
    optimizer.zero_grad()
    torch.manual_seed(step)
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    iter_num = step
    state_dict = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
    }
    ckpt_path = os.path.join(checkpoint_dir, f"checkpoint-{iter_num}.pt")
    if iter_num % save_memory_interval == 0:
        checkpointer.save_checkpoint(
            step, state_dict, ckpt_path, storage_type=StorageType.MEMORY
        )
    if iter_num % save_storage_interval == 0:
        checkpointer.save_checkpoint(
            step, state_dict, ckpt_path, storage_type=StorageType.DISK
        )
print("saved", step, checksum(), flush=True)
if "die" in sys.argv and os.environ.get("DLROVER_ROUND", "0") == "0":
    os.kill(os.getpid(), signal.SIGKILL)
