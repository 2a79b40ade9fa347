"""A worker that saves checkpoints in memory, for tests/flash. No torch: the state is numbers and bytes.

FLASH_DIR is the checkpoint directory. FLASH has a line for each step of the worker, with `<rank>@<round>` before those that
only one rank, or one round, makes (`1@`, `@0`, `1@0`):

    load                    load_checkpoint; writes <rank>.<round>.loaded: source, step and reason as JSON
    memory STEP | disk STEP save_checkpoint, and it must succeed
    try STEP                the same into memory, whatever comes of it; writes <rank>.<round>.tried: ok and error
    torn STEP               the same, but the worker is killed by SIGKILL in the middle of the copy
    replica STEP            waits until the saver of this node has a replica of this step from another node
    wait                    wait_latest_checkpoint; writes <rank>.<round>.waited: whether all is on disk
    say NAME                writes <rank>.<round>.NAME with the process id
    await NAME              waits for the file NAME
    hang                    waits to be killed
    term                    from now on SIGTERM is ignored
    exit CODE

FLASH_REPLICAS is `replica_count`, and FLASH_BYTES the length of a state (100,000). All files are in PROBE_OUT.
FLASH_SHARDS is the number of shards of the state, 1 by default: the first local rank of each node has one.
"""

import json
import os
import pathlib
import signal
import sys
import time
import zlib

from dlrover_run.flash_checkpoint import DdpCheckpointer, StorageType, header

OUT = pathlib.Path(os.environ["PROBE_OUT"])
RANK, ROUND = os.environ["RANK"], os.environ["DLROVER_ROUND"]
SHARDS = int(os.environ.get("FLASH_SHARDS", "1"))

# More than one page, and less than a pipe's worth: what is saved is copied, not only described.
LENGTH = int(os.environ.get("FLASH_BYTES", "100000"))


def content(step):
    """The bytes of a step: other ones for each, and for each shard."""
    shard = 0 if SHARDS == 1 else int(os.environ["GROUP_RANK"]) % SHARDS
    seed = b"%d of %d" % (step, shard)
    return (seed * (LENGTH // len(seed) + 1))[:LENGTH]


def state(step):
    data = content(step)
    return {"step": step, "data": data, "sum": zlib.crc32(data)}


def write(name, text):
    """A file that is there with all that it has, or not at all."""
    path = OUT / ("%s.%s.%s" % (RANK, ROUND, name))
    temporary = path.with_name("." + path.name)
    temporary.write_text(text)
    temporary.rename(path)


def load(checkpointer):
    loaded = checkpointer.load_checkpoint()
    if loaded and (loaded["data"], loaded["sum"]) != (content(loaded["step"]), zlib.crc32(loaded["data"])):
        sys.exit("step %s was loaded with other bytes" % loaded["step"])
    source, step, reason = checkpointer.last_load
    if loaded.get("step") != step:
        sys.exit("it says step %s and has loaded %s" % (step, loaded.get("step")))
    write("loaded", json.dumps({"source": source, "step": step, "reason": reason}))


def save(checkpointer, step, storage_type):
    result = checkpointer.save_checkpoint(step, state(step), storage_type=storage_type)
    if not result:
        sys.exit("step %d is not saved: %s" % (step, result.error))


def tear(checkpointer, step):
    """The slot is open, and the first half of what it had is overwritten."""
    open_write = header.open_write

    def open_and_die(slot):
        open_write(slot)
        slot[header.LENGTH : header.LENGTH + LENGTH // 2] = b"\xff" * (LENGTH // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    header.open_write = open_and_die
    save(checkpointer, step, StorageType.MEMORY)


def await_replica(checkpointer, step):
    """There is no event for it: a replica is nothing that a worker waits for."""
    own = checkpointer._identity.shard
    while True:
        request = {"type": "status"}
        status, _ = checkpointer._saver._connection.request(request, "status", time.monotonic() + 60)
        others = [shard for shard in status["shards"] if shard["shard"] != own]
        if any((slot["state"], slot["step"]) == ("whole", step) for shard in others for slot in shard["slots"]):
            return
        time.sleep(0.01)


def await_file(name):
    while not (OUT / name).exists():
        time.sleep(0.005)


def is_mine(where):
    rank, _, round_ = where.partition("@")
    return rank in ("", RANK) and round_ in ("", ROUND)


def main():
    replicas = int(os.environ.get("FLASH_REPLICAS", "0"))
    checkpointer = DdpCheckpointer(os.environ["FLASH_DIR"], global_shard_num=SHARDS, replica_count=replicas)
    for line in os.environ["FLASH"].splitlines():
        words = line.split()
        if "@" in words[0]:
            if not is_mine(words.pop(0)):
                continue
        what, rest = words[0], words[1:]
        if what == "load":
            load(checkpointer)
        elif what == "memory":
            save(checkpointer, int(rest[0]), StorageType.MEMORY)
        elif what == "disk":
            save(checkpointer, int(rest[0]), StorageType.DISK)
        elif what == "try":
            result = checkpointer.save_checkpoint(int(rest[0]), state(int(rest[0])), storage_type=StorageType.MEMORY)
            write("tried", json.dumps({"ok": bool(result), "error": result.error}))
        elif what == "torn":
            tear(checkpointer, int(rest[0]))
        elif what == "replica":
            await_replica(checkpointer, int(rest[0]))
        elif what == "wait":
            write("waited", json.dumps(checkpointer.wait_latest_checkpoint(60)))
        elif what == "say":
            write(rest[0], str(os.getpid()))
        elif what == "await":
            await_file(rest[0])
        elif what == "hang":
            while True:
                signal.pause()
        elif what == "term":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif what == "exit":
            sys.exit(int(rest[0]))
        else:
            sys.exit("what is %r?" % line)


if __name__ == "__main__":
    main()
