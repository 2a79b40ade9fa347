#!/usr/bin/env python3
"""Data-parallel training in the standard library: what a launcher gives its workers, put to use.

The workers meet in the TCPStore at MASTER_ADDR:MASTER_PORT, form a ring of sockets, and train one
logistic regression: each step every rank takes its slice of the same batch, the gradients are summed
around the ring, and all take the same step. Rank 0 writes a checkpoint; after a restart the run goes
on from there. A checkpoint says what it trains, and one of another training is refused. With --die-at
a rank kills itself on purpose.

    dlrover-run --standalone --nproc-per-node=2 --max-restarts=3 tests/trainers/ring_sgd.py --die-at 120
"""
import argparse
import array
import json
import math
import os
import random
import signal
import socket
import sys
import tempfile
import time

from tcp_store import Store, StoreServer, counted, receive_counted

FEATURES, BATCH, RATE = 12, 256, 0.5
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
# The restart count is each node's own; the round is the same on all of them.
GENERATION = os.environ.get("DLROVER_ROUND", str(ATTEMPT))


def say(text):
    print(text, flush=True)


def join_store():
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and RANK == 0:
        StoreServer(port)
    return Store(host, port)


# --- The ring: each rank sends to the next and receives from the one before. ---------------------

class Ring:
    def __init__(self, store):
        if WORLD == 1:
            return
        here = store.sock.getsockname()[0]  # The address by which the others' host knows this one.
        listener = socket.create_server((here, 0), family=store.sock.family)
        # The generation is in the key: torchrun serves the old attempt's keys to the new one.
        place = f"ring/{GENERATION}/"
        store.set(f"{place}{RANK}", json.dumps(listener.getsockname()[:2]).encode())
        address = json.loads(store.get(f"{place}{(RANK + 1) % WORLD}"))
        self.after = socket.create_connection(address, timeout=60)
        self.before = listener.accept()[0]
        for sock in (self.after, self.before):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def pass_on(self, data):
        """Sends to the next rank what it gets from the one before; small enough for the socket's buffer."""
        if WORLD == 1:
            return data
        self.after.sendall(counted(data))
        return receive_counted(self.before)

    def sum(self, vector):
        """Ring all-reduce: every piece is summed once around the ring, then goes around as it is.

        So all ranks hold the very same bits, whatever the order in which floats were added.
        """
        cut = [len(vector) * i // WORLD for i in range(WORLD + 1)]

        def exchange(send, take, merge):
            got = array.array("d", self.pass_on(vector[cut[send]:cut[send + 1]].tobytes()))
            for i, value in enumerate(got, cut[take]):
                vector[i] = merge(vector[i], value)

        for turn in range(WORLD - 1):
            exchange((RANK - turn) % WORLD, (RANK - turn - 1) % WORLD, lambda mine, theirs: mine + theirs)
        for turn in range(WORLD - 1):
            exchange((RANK + 1 - turn) % WORLD, (RANK - turn) % WORLD, lambda _, theirs: theirs)
        return vector


# --- The training. -------------------------------------------------------------------------------

def batch(step):
    """The batch of a step is the same for every world size: only the slices differ."""
    rng = random.Random(step)
    for _ in range(BATCH):
        x = [rng.gauss(0, 1) for _ in range(FEATURES)]
        label = sum(v * (-1) ** i for i, v in enumerate(x)) + rng.gauss(0, 0.3) > 0
        yield x + [1.0], float(label)


def gradient_and_loss(weights, step):
    total = array.array("d", bytes(8 * (FEATURES + 2)))  # The gradient, then the loss.
    for x, label in list(batch(step))[RANK::WORLD]:
        score = max(-30.0, min(30.0, sum(w * v for w, v in zip(weights, x))))
        guess = 1 / (1 + math.exp(-score))
        for i, v in enumerate(x):
            total[i] += (guess - label) * v / BATCH
        total[-1] -= (math.log(guess) if label else math.log(1 - guess)) / BATCH
    return total


def die(how):
    say(f"rank {RANK}: dies on purpose ({how})")
    if how == "raise":
        raise RuntimeError(f"rank {RANK} was asked to fail")
    if how == "exit3":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGSEGV if how == "segv" else signal.SIGKILL)


def trained(steps):
    """What a checkpoint must have in common with the run that goes on from it; the number of ranks may differ."""
    return {"features": FEATURES, "batch": BATCH, "rate": RATE, "steps": steps}


def read_checkpoint(path, steps):
    """The state in a file, which is not trusted."""
    try:
        with open(path) as file:
            state = json.load(file)
        found, step, loss = state["trained"], state["step"], state["loss"]
        weights = list(map(float, state["weights"]))
        is_whole = 0 < step <= steps and len(weights) == FEATURES + 1 and math.isfinite(loss)
    except (OSError, ValueError, TypeError, KeyError) as why:
        sys.exit(f"{path} cannot be read as a checkpoint ({why!r}): remove it, or name another file with --checkpoint")
    if found != trained(steps):
        sys.exit(f"{path} is the checkpoint of another training, {found}, and this one is {trained(steps)}: remove "
                 "it, or name another file with --checkpoint")
    if not is_whole:
        sys.exit(f"{path} is damaged: step {step} of {steps}, {len(weights)} weights, loss {loss}: remove it, or "
                 "name another file with --checkpoint")
    return {"step": step, "loss": loss, "weights": weights}


def resume(store, path, steps):
    """Rank 0 reads the checkpoint and tells the others, so all go on from the same step."""
    key = f"start/{GENERATION}"
    if RANK == 0:
        state = {"step": 0, "loss": None, "weights": [0.0] * (FEATURES + 1)}
        if os.path.exists(path):
            state = read_checkpoint(path, steps)
            say(f"attempt {ATTEMPT}: resumed from {path} at step {state['step']}")
        store.set(key, json.dumps(state).encode())
    state = json.loads(store.get(key))
    return state["step"], state["loss"], array.array("d", state["weights"])


def save(path, steps, step, loss, weights):
    """Written aside and renamed: a death in the middle leaves the old checkpoint whole."""
    with open(path + ".new", "w") as file:
        json.dump({"trained": trained(steps), "step": step, "loss": loss, "weights": list(weights)}, file)
    os.replace(path + ".new", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="at least 1")
    parser.add_argument("--sleep", type=float, default=0.005, help="seconds after each step")
    parser.add_argument("--checkpoint", help="file (default: one for the run id and the steps, removed at the end)")
    parser.add_argument("--die-at", type=int, default=-1, metavar="STEP", help="in the first attempt only")
    parser.add_argument("--die-rank", type=int, default=min(1, WORLD - 1), metavar="RANK")
    parser.add_argument("--die-how", choices=["kill", "exit3", "segv", "raise"], default="kill")
    args = parser.parse_args()
    if args.steps < 1:
        parser.error(f"--steps={args.steps}: there is nothing to train; give 1 or more")
    run = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    path = args.checkpoint or os.path.join(tempfile.gettempdir(), f"ring_sgd-{os.getuid()}-{run}-{args.steps}.json")

    store = join_store()
    ring = Ring(store)
    first, loss, weights = resume(store, path, args.steps)
    for step in range(first, args.steps):
        if ATTEMPT == 0 and (step, RANK) == (args.die_at, args.die_rank):
            die(args.die_how)
        total = ring.sum(gradient_and_loss(weights, step))
        loss = total.pop()
        for i, slope in enumerate(total):
            weights[i] -= RATE * slope
        if RANK == 0 and (step + 1) % 10 == 0:
            save(path, args.steps, step + 1, loss, weights)
        if RANK == 0 and step % 20 == 0:
            say(f"step {step:4d}  loss {loss:.4f}  ({WORLD} ranks, attempt {ATTEMPT})")
        time.sleep(args.sleep)

    if ring.pass_on(weights.tobytes()) != weights.tobytes():
        sys.exit(f"rank {RANK}: the rank before holds other weights")
    # Rank 0 speaks for all, and goes last: it may be the one that serves the store.
    agreed = store.add(f"agreed/{GENERATION}", 1)
    if agreed == WORLD:
        store.set(f"all-agreed/{GENERATION}", b"")
    if RANK == 0:
        store.get(f"all-agreed/{GENERATION}")
        say(f"final loss {loss:.4f} after {args.steps} steps; all {WORLD} ranks hold the same weights")
        if not args.checkpoint and os.path.exists(path):
            os.remove(path)


if __name__ == "__main__":
    try:
        main()
    except ConnectionError as gone:
        sys.exit(f"rank {RANK}: lost a neighbour or the store: {gone}")
