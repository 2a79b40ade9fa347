"""Runs a script that imports dlrover: python3 -m dlrover_run.shim train.py ..."""

import os
import runpy
import sys

from . import install

if len(sys.argv) < 2:
    sys.exit("usage: python3 -m dlrover_run.shim SCRIPT [ARGUMENT ...]")
install()
sys.argv = sys.argv[1:]
# As python itself does for a script.
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
