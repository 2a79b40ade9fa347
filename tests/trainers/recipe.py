#!/usr/bin/env python3
"""The `train.py` of the recipes: writes down its variables as <rank>.<round>.env, then trains with the other ranks."""
import json
import os

import ring_sgd


def note(name, what):
    path = os.path.join(os.environ["PROBE_OUT"], name)
    with open(path + ".new", "w") as file:
        json.dump(what, file)
    os.rename(path + ".new", path)


if __name__ == "__main__":
    note(f"{os.environ['RANK']}.{os.environ['DLROVER_ROUND']}.env", dict(os.environ))
    ring_sgd.main()
