#!/usr/bin/env python3
"""Runs dlrover-run on a host with one NVIDIA GPU, and says what holds. The tests of this tree need no GPU; this does.

    cargo build --profile dist -p launcher -p dlrover-diag --bins
    tests/hardware/run.py [--programs target/dist] [--python PYTHON] [--only NAME,...] [--out FOLDER]

PYTHON has torch with CUDA (default: this interpreter). FOLDER (default: this one) gets `hardware.log`, all output of
all commands, and `hardware.json`, the table. Exit code 1 when a line does not hold. It takes about six minutes, 35 GB
of memory, and a GPU that nothing else uses. Nothing outside of this host is reached.
"""

import argparse
import json
import pathlib
import shutil
import sys
import time

from bench import TREE, Bench, Skipped, Wrong
from checks import CHECKS


def checked(bench, name):
    """A row of the table."""
    bench.note("\n======== " + name)
    began = time.monotonic()
    try:
        state, text = "holds", CHECKS[name](bench)
    except Skipped as reason:
        state, text = "skipped", str(reason)
    except Exception as error:
        state, text = "FAILS", str(error) if isinstance(error, Wrong) else repr(error)
    row = {"check": name, "state": state, "seconds": round(time.monotonic() - began, 1), "what": text}
    bench.table.append(row)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=lambda text: pathlib.Path(text).resolve(), default=TREE / "target" / "dist")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(CHECKS))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    options = parser.parse_args()
    unknown = set(options.only) - set(CHECKS)
    if unknown:
        parser.error("there is no check %s; there are %s" % (", ".join(sorted(unknown)), ", ".join(CHECKS)))
    options.out.mkdir(exist_ok=True, parents=True)
    with open(options.out / "hardware.log", "w") as log:
        bench = Bench(options, log)
        try:
            for name in options.only:
                bench.clear()
                row = checked(bench, name)
                bench.note("%(state)s %(what)s" % row)
                print("%(check)-24s %(state)-8s %(seconds)6.1f s  %(what)s" % row, flush=True)
                (options.out / "hardware.json").write_text(json.dumps(bench.table, indent=1))
        finally:
            bench.clear()
            shutil.rmtree(bench.folder)
    return 1 if any(row["state"] == "FAILS" for row in bench.table) else 0


if __name__ == "__main__":
    sys.exit(main())
