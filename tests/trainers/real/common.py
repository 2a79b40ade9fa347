"""What the real programs share: a death in the first attempt, and one line that says what was trained."""
import hashlib
import os
import signal

RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def die_once(step, at):
    """Rank 1 is killed at this step of the first attempt."""
    if (RANK, ATTEMPT, step) == (1, 0, at):
        os.kill(os.getpid(), signal.SIGKILL)


def digest(*tensors):
    """The bytes of all tensors, bit for bit."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


def say(program, *tensors):
    if RANK == 0:
        print(f"{program} attempt {ATTEMPT} digest {digest(*tensors)}", flush=True)
