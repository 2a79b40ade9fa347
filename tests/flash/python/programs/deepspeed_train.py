"""DeepSpeed, ZeRO stage 1: deepspeed_train.py FOLDER STEPS. Prints where it began and a checksum."""

import hashlib
import sys
import warnings

import deepspeed
import torch
import torch.distributed as dist

from dlrover_run.flash_checkpoint.deepspeed import DeepSpeedCheckpointer, StorageType

warnings.simplefilter("ignore")
folder, steps = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Linear(64, 1))
deepspeed.init_distributed("gloo")
engine, _, _, _ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 1},
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    },
)
checkpointer = DeepSpeedCheckpointer(engine, folder, save_timeout=60)
path, client_state = checkpointer.load_checkpoint(folder)
print("found", checkpointer.last_load.source, engine.global_steps, (client_state or {}).get("mine"), flush=True)


def checksum():
    # The part of the master weights that this rank has.
    state = engine.optimizer.single_partition_of_fp32_groups
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in state)).hexdigest()[:16]


for _ in range(steps):
    torch.manual_seed(engine.global_steps + dist.get_rank())
    loss = engine(torch.randn(4, 16, dtype=torch.bfloat16)).float().square().mean()
    engine.backward(loss)
    engine.step()
    step = engine.global_steps
    storage = StorageType.DISK if step % 2 == 0 else StorageType.MEMORY
    result = checkpointer.save_checkpoint(folder, client_state={"mine": step}, storage_type=storage)
    print("result", bool(result), result.error, flush=True)
print("trained", engine.global_steps, checksum(), flush=True)
dist.barrier()
