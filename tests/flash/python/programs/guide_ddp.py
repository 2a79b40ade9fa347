"""The guide's script for DDP, with a model and a loop around it: guide_ddp.py FOLDER STEPS [die|again|hang]

Prints where it began and a checksum of what it loaded and saved last. With `die` its first round ends by SIGKILL; with
`again` the second one too, which saves nothing. With `hang` the first one waits for the disk, makes the file
`<rank>.waited` in the directory PROBE_OUT, and rests until it is killed.
"""

import hashlib
import os
import signal
import sys

import torch
import torch.distributed as dist
from dlrover.trainer.torch.flash_checkpoint.ddp import (
    DdpCheckpointer,
    StorageType,
)

checkpoint_dir, steps = sys.argv[1], int(sys.argv[2])
round_, is_to = int(os.environ.get("DLROVER_ROUND", "0")), sys.argv[3:]
never = sys.maxsize
save_memory_interval, save_storage_interval = (never, never) if round_ == 1 and "again" in is_to else (1, 5)

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.BatchNorm1d(512), torch.nn.Linear(512, 8))
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
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
print("trained" if save_memory_interval == never else "saved", step, checksum(), flush=True)
if "die" in is_to and round_ == 0 or "again" in is_to and round_ < 2:
    os.kill(os.getpid(), signal.SIGKILL)
if "hang" in is_to and round_ == 0:
    checkpointer.wait_latest_checkpoint(60)
    with open(os.path.join(os.environ["PROBE_OUT"], os.environ["RANK"] + ".waited"), "w"):
        pass
    while True:
        signal.pause()
if dist.is_initialized():
    dist.barrier()
    dist.destroy_process_group()
