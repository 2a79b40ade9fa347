"""Writes to standard error until the pipe is full, touches `full.<attempt>`, and then fails (attempt 0)
or goes on writing for ever (later attempts)."""

import os
import time

LINE = b"x" * 79 + b"\n"
PATIENCE = 0.5  # seconds without a byte taken: full

os.set_blocking(2, False)
taken = time.monotonic()
while time.monotonic() - taken < PATIENCE:
    try:
        os.write(2, LINE * 100)
        taken = time.monotonic()
    except BlockingIOError:
        time.sleep(0.01)

attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
open(f"{os.environ['PROBE_OUT']}/full.{attempt}", "w").close()
if attempt == "0":
    raise SystemExit(3)
os.set_blocking(2, True)
while True:
    os.write(2, LINE)
