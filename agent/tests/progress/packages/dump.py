# Prints what a script can see of the interpreter that it runs in.
import sys

seen = {"modules": sorted(sys.modules) if sys.version_info < (3, 7) else list(sys.modules), "path": list(sys.path), "finders": [str(f).split(" at ")[0] for f in sys.meta_path]}
import json
import os
import subprocess

seen["environment"] = list(os.environ.items())
if sys.version_info < (3, 7):
    # Where dictionaries have no order.
    seen["environment"].sort()
seen["cached"] = sorted(sys.path_importer_cache)
seen["zips"] = sorted(getattr(sys.modules.get("zipimport"), "_zip_directory_cache", ()))
seen["customized by"] = getattr(sys.modules.get("sitecustomize"), "__file__", None)
seen["arguments"] = sys.argv
seen["flags"] = str(sys.flags)
seen["open"] = os.listdir("/proc/self/fd")
seen["environment of a child"] = subprocess.check_output(["env"]).decode().splitlines()
json.dump(seen, sys.stdout, indent=1, sort_keys=True)
