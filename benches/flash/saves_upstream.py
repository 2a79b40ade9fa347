"""DLRover 0.6.1: saves_upstream.py MIB TURNS FOLDER, in its own virtual environment.

The saver is a process of its own, as that of its agent: the one that it forks itself did not come up here.
"""

import os
import subprocess
import sys
import time
from importlib.metadata import version

import torch
from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType
from saves_common import Figures, await_tracker, state_of, timed, touch, tracked

SAVER = """
import sys
from dlrover.python.elastic_agent.torch.ckpt_saver import AsyncCheckpointSaver
AsyncCheckpointSaver.start_async_saving_ckpt()
sys.stdin.read()
"""

# Else the checkpointer forks a saver.
os.environ["ROLE_NAME"] = "dlrover-trainer"
saver = subprocess.Popen([sys.executable, "-c", SAVER], stdin=subprocess.PIPE)
mib, turns, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
figures = Figures()
_, state = state_of(mib)
checkpoints = os.path.join(folder, "upstream")
checkpointer = DdpCheckpointer(checkpoints)
step = 0


def save(storage):
    """Seconds, and whether it was taken: it returns nothing that says so."""
    global step
    step += 1
    seconds, _ = timed(lambda: checkpointer.save_checkpoint(step, dict(state), storage_type=storage))
    return seconds, checkpointer._engine._cached_step == step


def on_disk():
    """A save for the disk, until its tracker names it, and what becomes of three other ones meanwhile."""
    seconds, is_taken = save(StorageType.DISK)
    wanted = step
    during = []
    # A save before its saver holds the lock would make the one for the disk fail: the step differs then.
    deadline = time.monotonic() + 10
    while is_taken and not checkpointer._engine._shm_lock.locked() and time.monotonic() < deadline:
        time.sleep(0.001)
    while is_taken and len(during) < 3 and tracked(checkpoints) < wanted:
        during.append(save(StorageType.MEMORY)[1])
    return seconds, is_taken and await_tracker(checkpoints, wanted), during


touch()
figures.add("upstream first", save(StorageType.MEMORY)[0])
for _ in range(turns):
    touch()
    seconds, is_taken = save(StorageType.MEMORY)
    if is_taken:
        figures.add("upstream", seconds)
    figures.count("upstream, saves that were not taken while idle", not is_taken)
for _ in range(max(2, turns // 3)):
    touch()
    whole, (seconds, is_taken, during) = timed(on_disk)
    figures.count("upstream, DISK saves that were not on disk after 60 s", not is_taken)
    if is_taken:
        figures.add("upstream disk call", seconds)
        figures.add("upstream on disk", whole)
    for is_other_taken in during:
        figures.count("upstream, saves during a persist", True)
        figures.count("upstream, saves that were not taken during a persist", not is_other_taken)
figures.write(folder, DLRover=version("dlrover"), **{"its torch": torch.__version__})
saver.kill()
saver.wait()
os._exit(0)
