"""What the real programs share: a death in the first attempt, and lines that say what was trained, and by which worker."""
import gc
import hashlib
import os
import signal
import sys
import time

RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def die_once(step, at):
    """Rank 1 is killed at this step of the first attempt: with DEATH_WAITS once there is the file `go`."""
    if (RANK, ATTEMPT, step) == (1, 0, at):
        while "DEATH_WAITS" in os.environ and not os.path.exists(os.path.join(os.environ["PROBE_OUT"], "go")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


def digest(*tensors):
    """The bytes of all tensors, bit for bit."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


def write(line):
    """In one piece: with `-u`, `print` writes the end of the line by itself, and another rank may come between."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def say(program, *tensors):
    if RANK == 0:
        write(f"{program} attempt {ATTEMPT} digest {digest(*tensors)}")
    # A template has frozen what it imported.
    origin = "forked" if gc.get_freeze_count() else "started"
    write(f"rank {RANK} of attempt {ATTEMPT} was {origin}")
