"""Saves a state that is on the GPU into the saver's memory, beside torch's own ways: flash.py MIB TURNS FOLDER RESULT

In the second attempt it loads what the first one has saved, and compares every byte.
"""

import json
import os
import signal
import sys
import time

import torch

from dlrover_run.flash_checkpoint import DdpCheckpointer, StorageType

MIB, TURNS, FOLDER, RESULT = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
TENSOR_MIB = 64
figures = json.load(open(RESULT)) if ATTEMPT else {"mib": MIB}


def state(step):
    generator = torch.Generator(device="cuda").manual_seed(step)
    make = lambda: torch.randn(TENSOR_MIB << 18, device="cuda", generator=generator)
    return {"model": {"weight.%d" % index: make() for index in range(MIB // TENSOR_MIB)}, "step": step}


def timed(call):
    torch.cuda.synchronize()
    began = time.monotonic()
    result = call()
    torch.cuda.synchronize()
    return time.monotonic() - began, result


def write():
    with open(RESULT + ".new", "w") as file:
        json.dump(figures, file)
    os.rename(RESULT + ".new", RESULT)


checkpointer = DdpCheckpointer(FOLDER)
if ATTEMPT:
    figures["load_s"], loaded = timed(checkpointer.load_checkpoint)
    figures["load_source"] = checkpointer.last_load[0]
    wanted = state(loaded["step"])["model"]
    figures["copy_back_s"], back = timed(lambda: {name: it.cuda() for name, it in loaded["model"].items()})
    figures["equal"] = all(torch.equal(back[name], wanted[name]) for name in wanted)
    figures["step"] = loaded["step"]
    write()
    checkpointer.close()
    sys.exit(0)



def rates_of_torch(name, **options):
    """GB/s of a plain copy to the memory of the host."""
    size = 1 << 30
    source = torch.zeros(size, dtype=torch.uint8, device="cuda")
    target = torch.ones(size, dtype=torch.uint8, **options)
    figures[name] = [size / 1e9 / timed(lambda: target.copy_(source))[0] for _ in range(3)]


made = state(0)
rates_of_torch("torch_pinned_gbps", pin_memory=True)
rates_of_torch("torch_pageable_gbps")
write()
figures["prepare_call_s"] = timed(lambda: checkpointer.prepare(made))[0]
figures["prepare_s"] = timed(checkpointer._join_preparation)[0]
write()
for step in range(1, TURNS + 1):
    del made
    made = state(step)
    seconds, result = timed(lambda: checkpointer.save_checkpoint(step, made, storage_type=StorageType.MEMORY))
    if not result:
        sys.exit("the save failed: %s" % (result,))
    figures.setdefault("save_s", []).append(seconds)
figures["gbps"] = [MIB * 1048576 / 1e9 / seconds for seconds in figures["save_s"]]
write()
if os.environ.get("HARDWARE_DCP"):
    import torch.distributed.checkpoint as dcp

    for turn in range(3):
        path = os.path.join(FOLDER, "dcp-%d" % turn)
        seconds, future = timed(lambda: dcp.async_save(made, checkpoint_id=path))
        figures.setdefault("dcp_async_save_call_s", []).append(seconds)
        write()
        getattr(future, "upload_completion", future).result()
os.kill(os.getpid(), signal.SIGKILL)
