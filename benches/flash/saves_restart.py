"""What a checkpoint costs a restart: saves_restart.py MIB TURNS FOLDER with|without, under dlrover-run.

Each start but the last one kills itself: with a save that is on its way to disk, or without any. The next one tells how
long that took, from the signal to its own first line.
"""

import time

began = time.monotonic()

import json
import os
import signal
import sys

mib, turns, folder, way = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
known = os.path.join(folder, "known.json")
told = {"restart": [], "load": [], "died": None, "wrong": 0}
if os.path.exists(known):
    with open(known) as file:
        told = json.load(file)
if told["died"] is not None:
    told["restart"].append(began - told["died"])

from saves_common import Figures, state_of, timed

tensors, state = state_of(mib)
if way == "with":
    from dlrover_run.flash_checkpoint import DdpCheckpointer, StorageType

    checkpointer = DdpCheckpointer(os.path.join(folder, "restarts"))
    seconds, found = timed(checkpointer.load_checkpoint)
    if told["restart"]:
        told["load"].append(seconds)
        told["wrong"] += found.get("step") != len(told["restart"]) or checkpointer.last_load.source != "memory"

if len(told["restart"]) < turns:
    if way == "with":
        state["step"] = len(told["restart"]) + 1
        checkpointer.save_checkpoint(state["step"], state, storage_type=StorageType.DISK)
    told["died"] = time.monotonic()
    with open(known, "w") as file:
        json.dump(told, file)
    os.kill(os.getpid(), signal.SIGKILL)

figures = Figures()
for seconds in told["restart"]:
    figures.add("restart " + way, seconds)
for seconds in told["load"]:
    figures.add("load", seconds)
if way == "with":
    figures.counts["ours, restarts that did not load the last step from memory"] = told["wrong"]
figures.write(folder)
