"""Runs commands as the workers of a node, with the saver itself: what the agent and the job do is done here, simply.

    with_saver.py [--ranks N] [--allowance BYTES] SAVER -- COMMAND ... [-- COMMAND ...]

SAVER is a program that is a saver under the name `dlrover-saver`. Each COMMAND is a round: it is started once for each
rank. When all ranks have ended, the next round restores from memory what all of them had. Exits with the code of the
last command's first rank that failed; prints what the saver says on standard error.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import threading
import time

RUN = "run"


class Agent:
    """The agent of the only node of a job, and the job."""

    def __init__(self, program, ranks, allowance):
        self.ranks = ranks
        self.address = "@dlrover-test-saver-%d-%d" % (os.getpid(), time.monotonic_ns())
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind("\0" + self.address[1:])
        listener.listen(64)
        listener.setblocking(False)
        number = listener.fileno()
        start = {"run_id": RUN, "allowance": allowance, "launcher": os.getpid(), "listener": number}
        self._process = subprocess.Popen(
            ["dlrover-saver", json.dumps(start)],
            executable=program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[number],
            start_new_session=True,
        )
        listener.close()
        self._lock = threading.Lock()
        # By directory and step: the shards that are on disk. And the directories' steps that were ordered or committed.
        self._persisted, self._ordered = {}, set()
        self._answer, self._answered = None, threading.Event()
        self.finished = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def tell(self, **message):
        with self._lock:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def round(self, number, restore):
        self.tell(
            type="round",
            round=number,
            world=self.ranks,
            first_rank=0,
            local_world_size=self.ranks,
            restore=restore,
            memory_is_void=False,
        )

    def workers_gone(self, number):
        """What is in memory when all workers are dead."""
        self._answered.clear()
        self._answer = number
        self.tell(type="workers_gone", round=number)
        assert self._answered.wait(60), "the saver did not answer workers_gone"
        return self._shards

    def finish(self):
        self.tell(type="finish", grace_ms=60000, also_memory=False)
        assert self.finished.wait(90), "the saver did not finish"
        self._process.wait(10)

    def _read(self):
        for line in self._process.stdout:
            message = json.loads(line.decode())
            getattr(self, "_on_" + message["type"], lambda message: None)(message)

    def _on_log(self, message):
        sys.stderr.write("[saver] %(level)s: %(text)s\n" % message)

    def _on_failed(self, message):
        sys.stderr.write("[saver] failed: %r\n" % (message,))

    def _on_finished(self, message):
        self.finished.set()

    def _on_state(self, message):
        self._shards = message["shards"]
        for folder, step in common(self._shards, "wishes"):
            if (folder, step) not in self._ordered and any(shard["n_shards"] > 1 for shard in self._shards):
                self._ordered.add((folder, step))
                self.tell(type="persist", dir=folder, step=step)
        if self._answer == message["round"]:
            self._answered.set()

    def _on_persisted(self, message):
        folder, step, shard = message["dir"], message["step"], message["shard"]
        shards = self._persisted.setdefault((folder, step), {})
        shards[shard["shard"]] = shard
        if len(shards) == shard["n_shards"]:
            names = "world n_shards replicated format".split()
            manifest = dict({name: shard[name] for name in names}, version=1, step=step, time=None)
            manifest["shards"] = [shards[number] for number in sorted(shards)]
            self.tell(type="commit", dir=folder, step=step, manifest=manifest)

    def _on_committed(self, message):
        self.tell(type="committed", dir=message["dir"], step=message["step"])


def common(shards, name):
    """(directory, step) of the steps that all shards of a directory have."""
    folders = {}
    for shard in shards:
        folders.setdefault(shard["dir"], []).append(shard)
    for folder, found in sorted(folders.items()):
        if len(found) == found[0]["n_shards"]:
            for step in sorted(set.intersection(*(set(shard[name]) for shard in found))):
                yield folder, step


def main():
    own, commands = [], [[]]
    words = sys.argv[1:]
    while words and words[0] != "--":
        own.append(words.pop(0))
    for word in words[1:]:
        if word == "--":
            commands.append([])
        else:
            commands[-1].append(word)
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--allowance", type=int, default=8 << 30)
    parser.add_argument("saver")
    options = parser.parse_args(own)
    agent = Agent(options.saver, options.ranks, options.allowance)
    restore, code = [], 0
    for number, command in enumerate(commands):
        agent.round(number, restore)
        code = _run(agent, number, command)
        shards = agent.workers_gone(number)
        newest = dict(common(shards, "steps"))
        restore = [{"dir": folder, "step": step, "source": "memory"} for folder, step in newest.items()]
    agent.finish()
    sys.exit(code)


def _run(agent, number, command):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    variables = dict(
        DLROVER_CKPT_SOCK=agent.address,
        DLROVER_ROUND=str(number),
        TORCHELASTIC_RUN_ID=RUN,
        TORCHELASTIC_RESTART_COUNT=str(number),
        WORLD_SIZE=str(agent.ranks),
        LOCAL_WORLD_SIZE=str(agent.ranks),
        GROUP_RANK="0",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    workers = [
        subprocess.Popen(
            command,
            env=dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), **variables),
            # Lines of several ranks would mix.
            stdout=None if rank == 0 else sys.stderr,
        )
        for rank in range(agent.ranks)
    ]
    codes = [worker.wait() for worker in workers]
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    main()
