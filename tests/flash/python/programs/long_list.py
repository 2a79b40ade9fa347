"""A state with the order of a sampler: long_list.py FOLDER STORAGE.

Loads, prints the source and the step, and saves the next step.
"""

import sys

from dlrover_run.flash_checkpoint import DdpCheckpointer, StorageType

checkpointer = DdpCheckpointer(sys.argv[1], on_error="raise")
# More items than the saver reads of a state.
order = list(range(4300000))
found = checkpointer.load_checkpoint()
assert found.get("order", order) == order
step = found.get("step", 0)
print("loaded", checkpointer.last_load.source, step, flush=True)
checkpointer.save_checkpoint(step + 1, {"step": step + 1, "order": order}, storage_type=StorageType[sys.argv[2]])
assert checkpointer.wait_latest_checkpoint()
