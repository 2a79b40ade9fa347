"""Rank 1 writes to the file named by argv, which hangs in the kernel when its file system is frozen. Rank 0
fails as soon as the kernel shows rank 1 in state D."""

import os
import sys
import time

tmp = os.environ["TMPDIR"] + "/rank1.pid"
if os.environ["RANK"] == "1":
    with open(tmp + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(tmp + ".new", tmp)
    open(sys.argv[1], "w").write("x")
while True:
    try:
        state = open(f"/proc/{open(tmp).read()}/stat").read().rsplit(")", 1)[1].split()[0]
        if state == "D":
            sys.exit(3)
    except FileNotFoundError:
        pass
    time.sleep(0.01)
