"""A state with a part for each rank: shards.py KIND FOLDER OUT ACTION ...

KIND is `ddp` (DdpCheckpointer with a shard for each rank), `same` (with the same state on all) or `rank`
(RankCheckpointer). Actions: `group` initializes
torch.distributed before anything else; `save STEP` saves for the disk, and waits for it; `load` loads, and writes what
was loaded, or the error, to the file <rank> in the directory OUT. SAVE_TIMEOUT is `save_timeout`.
"""

import json
import os
import sys

kind, folder, out, actions = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if "group" in actions:
    import torch.distributed as dist

    dist.init_process_group("gloo")

from dlrover_run.flash_checkpoint import DdpCheckpointer, FlashCheckpointError  # noqa: E402
from dlrover_run.flash_checkpoint.files import RankCheckpointer  # noqa: E402

options = {"save_timeout": float(os.environ.get("SAVE_TIMEOUT", "600"))}
if kind == "ddp":
    checkpointer = DdpCheckpointer(folder, local_shard_num=world, global_shard_num=world, **options)
elif kind == "same":
    checkpointer = DdpCheckpointer(folder, **options)
else:
    checkpointer = RankCheckpointer(folder, **options)
for action, argument in zip(actions, actions[1:] + [""]):
    if action == "save":
        state = {"step": int(argument), "rank": rank, "bytes": b"x" * 1000}
        result = checkpointer.save_checkpoint(int(argument), state)
        assert result and checkpointer.wait_latest_checkpoint(60), result
    if action == "load":
        try:
            found = checkpointer.load_checkpoint()
            found = [found.get("step"), found.get("rank"), checkpointer.last_load.source]
        except FlashCheckpointError as error:
            found = [type(error).__name__, str(error)]
        with open(os.path.join(out, str(rank)), "w") as file:
            json.dump(found, file)
if "group" in actions:
    dist.barrier()
    dist.destroy_process_group()
