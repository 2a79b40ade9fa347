"""Holds our entry point against torchrun's own parser, on random command lines and PET_* variables.

A developer's tool, not part of `cargo test`: it needs torch. Build the example first, then
    <venv>/bin/python launcher/tests/torchrun_argparse.py <target>/debug/examples/entry [cases] [seed]
Prints each line that the two answer differently, but for the differences listed in `expected`.
"""

import contextlib
import io
import json
import logging
import os
import random
import subprocess
import sys
import uuid

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.api import Std, to_map
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

logging.disable(logging.CRITICAL)
os.environ.pop("OMP_NUM_THREADS", None)

WORDS = [
    "--nnodes", "--nproc-per-node", "--nproc_per_node", "--rdzv-backend", "--rdzv_endpoint", "--rdzv-id", "--rdzv-conf",
    "--standalone", "--max-restarts", "--max_restarts", "--monitor-interval", "--start-method", "--event-log-handler",
    "--role", "-m", "--module", "--no-python", "--run-path", "-r", "--redirects", "-t", "--tee",
    "--log-line-prefix-template", "--local-ranks-filter", "--duplicate-stdout-filters", "--duplicate_stderr_filters",
    "--node-rank", "--master-addr", "--master-port", "--local-addr", "--signals-to-handle", "--shutdown-timeout",
    "--virtual-local-rank", "--no", "--standal", "--max-r", "--rdzv-b", "--rol", "--nn", "--m", "--bogus", "--bogus=1",
    "-x", "-h", "--", "-", "-5", "-mr3", "-r3", "-t=2", "-mt", "--module=1", "--role=", "--=", "--mo", "--mon", "--mod",
    "--node", "--n", "--local-", "--master-p", "--tee=0:1,1:2", "--nnodes=1", "--standalone=1", "-mx", "-rm", "-m=1",
]
VALUES = [
    "1", "2", "0", "-1", " 2", "+2", "1_0", "a", "", "1:1", "1:2", "2:1", "1:2:3", ":", "0.5", "-0.5", "1e3", "nan", "cpu",
    "auto", "gpu", "abc", "static", "c10d", "etcd", "localhost:0", "localhost:29400", "127.0.0.1:1", "[::1]:5", "h:70000",
    "h:x", "a/b:1", "k=v", "abc", "=x", "join_timeout=5", "spawn", "fork", "null", "console", "3", "0:3", "0:1,1:2", "9",
    "10:1", "0,1", "0,a", "x,,y,z", "SIGTERM", "29500", "x y", "-x y", "--nnodes=1 2", "train.py", "-9a", "-.5", "9" * 25,
]
SCRIPTS = ["train.py", "pkg.mod", "./x", "a b"]
TAILS = [[], ["--epochs", "3"], ["a", "--", "b"], ["-h"], ["${local_rank}", ""], ["--nproc-per-node=9"]]
DESTS = [
    "NNODES", "NPROC_PER_NODE", "RDZV_BACKEND", "RDZV_ENDPOINT", "RDZV_ID", "RDZV_CONF", "STANDALONE", "MAX_RESTARTS",
    "MONITOR_INTERVAL", "START_METHOD", "ROLE", "MODULE", "NO_PYTHON", "REDIRECTS", "TEE", "LOCAL_RANKS_FILTER",
    "DUPLICATE_STDOUT_FILTERS", "NODE_RANK", "MASTER_PORT", "SHUTDOWN_TIMEOUT", "VIRTUAL_LOCAL_RANK", "LOGS_SPECS",
]


def theirs(argv):
    """(exit code, facts) of torchrun, without starting anything."""
    uuids = []
    real = uuid.uuid4

    def fresh():
        uuids.append(real())
        return uuids[-1]

    torchrun.uuid.uuid4 = fresh
    seen = []

    def launch(config, entrypoint):
        seen.append((config, entrypoint))
        return lambda *args: seen.append(args)

    torchrun.elastic_launch = launch
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            torchrun.run(torchrun.parse_args(argv))
        except SystemExit as end:
            return end.code, None
        except Exception as error:
            return 1, repr(error)
        finally:
            torchrun.uuid.uuid4 = real
            os.environ.pop("OMP_NUM_THREADS", None)
    (config, entrypoint), args = seen
    try:
        assert config.monitor_interval > 0 and config.nproc_per_node > 0
        assert config.rdzv_backend in ("static", "c10d", "etcd", "etcd-v2"), "backend"
        host, port = parse_rendezvous_endpoint(config.rdzv_endpoint, -1)
        if config.rdzv_backend == "static":
            assert port != -1
            assert 0 <= config.rdzv_configs["rank"] < config.max_nodes
        assert config.shutdown_timeout is None or config.shutdown_timeout >= 0
        assert config.event_log_handler in ("null", "console", "dynamic_rendezvous")
        for key in ("join_timeout",):
            assert int(config.rdzv_configs.get(key, 1)) > 0
    except Exception as error:
        return 1, repr(error)
    n = config.nproc_per_node
    specs = config.logs_specs
    streams = lambda value: [to_map(value, n)[rank].value for rank in range(n)] if n < 100 else None
    fresh_id = config.run_id in [str(one) for one in uuids] or not config.run_id
    static = config.rdzv_backend == "static"
    return 0, {
        "nodes": [config.min_nodes, config.max_nodes],
        "local_world_size": n,
        "role": config.role,
        "run_id": "fresh" if fresh_id else config.run_id,
        "max_restarts": min(config.max_restarts, 2**32 - 1),
        "shutdown_timeout": 30 if config.shutdown_timeout is None else min(config.shutdown_timeout, 2**32 - 1),
        "signals_to_handle": config.signals_to_handle,
        "virtual_local_rank": config.virtual_local_rank,
        "redirects": streams(specs._redirects),
        "tee": streams(specs._tee),
        "prefix": config.log_line_prefix_template or "[${role_name}${local_rank}]:",
        "console_ranks": sorted(r for r in specs._local_ranks_filter if r >= 0) if specs._local_ranks_filter else None,
        "stdout_filters": config.duplicate_stdout_filters,
        "stderr_filters": config.duplicate_stderr_filters,
        "local_addr": config.local_addr or None,
        "meeting": meeting(config, static, host, port),
        "argv": list(args) if isinstance(entrypoint, str) and not args[:1] == () and entrypoint.endswith("python3")
        else [*args],
        "entry": entrypoint if isinstance(entrypoint, str) else None,
    }


def meeting(config, static, host, port):
    shown = f"[{host}]" if ":" in host else host
    if static:
        return f"static {shown}:{port}"
    is_here = host in ("localhost", "127.0.0.1", "::1")
    if is_here and config.max_nodes == 1:
        return "c10d alone"
    return f"c10d {shown}:{29400 if port == -1 else port}"


def ours(program, argv, env):
    done = subprocess.run([program, *argv], env={**os.environ, **env, "FACTS": "1"}, capture_output=True, text=True)
    if done.returncode or not done.stdout.startswith("{"):
        return done.returncode, done.stderr.strip().splitlines()[-1:]
    return 0, json.loads(done.stdout)


def expected(argv, env, code, facts, our_code, our_facts):
    """Differences that are meant."""
    message = our_facts[0] if our_code and our_facts else ""
    # A prefix that fits only the two spellings of one option is ambiguous to CPython 3.11 alone; and it looks
    # at words behind the script.
    if code == 2 and our_code != 2:
        with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
            with contextlib.suppress(SystemExit):
                torchrun.parse_args(argv)
        if "ambiguous option" in said.getvalue():
            return True
    # A pair of --box-pairs is never the script.
    if "looks like a pair of --box-pairs" in message:
        return True
    # No one can join a standalone job, so it is refused instead of waiting for ever.
    if "--standalone runs on this node alone" in message:
        return True
    # Numbers beyond all reason are refused, or cut to the largest that fits.
    if "9" * 25 in str(argv) + str(env):
        return True
    # etcd is refused, and so is a port that no other node could learn.
    if "is not supported: use" in message or "0 (any free one) requires" in message:
        return True
    # Port 0 of one node that meets on localhost: any free one, where torchrun's workers would find MASTER_PORT=0.
    if code == our_code == 0 and facts["meeting"].endswith(":0"):
        return our_facts["meeting"] == "c10d alone" and {**facts, "meeting": 0} == {**our_facts, "meeting": 0}
    # Ranks of two digits.
    if code == 1 and our_code == 0 and "10:1 does not match" in facts:
        return True
    # CPython 3.11 drops a `--` directly after the script; ours is verbatim, as the words behind it.
    if code == our_code == 0:
        theirs, mine = facts["argv"], list(our_facts["argv"])
        if "--" in mine:
            mine.remove("--")
            return theirs == mine and {**facts, "argv": 0} == {**our_facts, "argv": 0}
    return False


def main():
    program, cases, seed = sys.argv[1], int((sys.argv[2:] + ["2000"])[0]), int((sys.argv[3:] + ["1"])[0])
    rng = random.Random(seed)
    differ = 0
    codes = {0: 0, 1: 0, 2: 0}
    os.environ["PYTHON_EXEC"] = "python3"
    for _ in range(cases):
        argv = []
        for _ in range(rng.randint(0, 3)):
            word = rng.choice(WORDS)
            shape = rng.random()
            if shape < 0.45:
                argv += [word, rng.choice(VALUES)]
            elif shape < 0.8 and word.startswith("--"):
                argv += [f"{word}={rng.choice(VALUES)}"]
            else:
                argv += [word]
        if rng.random() < 0.93:
            argv += [rng.choice(SCRIPTS), *rng.choice(TAILS)]
        env = {f"PET_{rng.choice(DESTS)}": rng.choice(VALUES) for _ in range(rng.choice([0, 0, 0, 1, 2]))}
        os.environ.update(env)
        code, facts = theirs(argv)
        our_code, our_facts = ours(program, argv, env)
        for name in env:
            del os.environ[name]
        codes[code] = codes.get(code, 0) + 1
        same = code == our_code
        if same and code == 0 and isinstance(facts, dict) and isinstance(our_facts, dict):
            entry = facts.pop("entry")
            if entry is None:
                facts["argv"] = ["-u", *facts["argv"]]  # --run-path: the file, with Python
            if our_facts["run_id"].count("-") == 4 and len(our_facts["run_id"]) == 36:
                our_facts["run_id"] = "fresh"
            if facts["redirects"] is None:
                facts["redirects"], facts["tee"] = our_facts["redirects"], our_facts["tee"]
            if our_facts["nodes"] == [1, 1] and facts["nodes"][0] == 1 and "--standal" in " ".join(argv) + str(env).lower():
                facts["nodes"] = [1, 1]
            same = facts == our_facts
        if not same and not expected(argv, env, code, facts, our_code, our_facts):
            differ += 1
            print(f"{argv} {env}\n  torchrun {code}: {facts}\n  ours     {our_code}: {our_facts}")
    print(f"{cases} cases, {differ} differ; torchrun's exit codes: {codes}")


main()
