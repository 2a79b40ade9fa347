"""How the hardware checks start programs and keep what they print."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parent.parent
PACKAGE = TREE / "packaging" / "wheel" / "python"


class Wrong(Exception):
    """A line does not hold."""


class Skipped(Exception):
    """A line cannot be tried on this host."""


def must(holds, text):
    if not holds:
        raise Wrong(text)


class Bench:
    def __init__(self, options, log):
        self.options, self.log = options, log
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="hardware-"))
        self.table = []
        # What was started and may still run.
        self.processes = []

    def program(self, name):
        return str(self.options.programs / name)

    def note(self, text):
        self.log.write(text + "\n")
        self.log.flush()

    def start(self, command, executable=None, stdin="", **variables):
        self.note("\n$ %s   # %s" % (" ".join(map(str, command)), variables))
        environment = {**os.environ, "PYTHON_EXEC": self.options.python, "OMP_NUM_THREADS": "1"}
        environment.update(PYTHONPATH=str(PACKAGE), HARDWARE_OUT=str(self.folder), TMPDIR=str(self.folder))
        environment.pop("XDG_CACHE_HOME", None)
        environment.update({name: str(value) for name, value in variables.items()})
        output = tempfile.TemporaryFile("w+")
        process = subprocess.Popen([str(word) for word in command], executable=executable, env=environment,
                                   stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, text=True,
                                   start_new_session=True, cwd=TREE)
        process.stdin.write(stdin)
        process.stdin.close()
        process.output, process.began = output, time.monotonic()
        self.processes.append(process)
        return process

    def end(self, process, seconds=60, stop=None):
        """The output and the exit code. A command that takes longer gets SIGINT, then SIGKILL, and is wrong."""
        late = False
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            late = True
            process.send_signal(stop or signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        process.output.seek(0)
        text = process.output.read()
        self.note(text[-20000:])
        self.note("-> %s after %.1f s" % (process.returncode, time.monotonic() - process.began))
        if late and stop is None:
            raise Wrong("no end within %s s: %s" % (seconds, text[-300:]))
        return text, process.returncode

    def run(self, command, seconds=60, **others):
        return self.end(self.start(command, **others), seconds)

    def launch(self, *words, seconds=90, **variables):
        return self.run([self.program("dlrover-run"), *words], seconds, **variables)

    def diag(self, *words, seconds=60, **variables):
        return self.run([self.program("dlrover-diag"), *words], seconds, **variables)

    def facts(self, attempt, rank=0):
        return json.loads((self.folder / ("attempt.%d.rank.%d" % (attempt, rank))).read_text())

    def clear(self):
        """Before the next check: the last one may have failed in the middle."""
        for process in self.processes:
            if process.poll() is None:
                # A launcher takes its workers with it, however it ends.
                process.kill()
                process.wait()
        self.processes.clear()
        shutil.rmtree(self.folder)
        self.folder.mkdir()

    def probe(self, task, seconds=60, **variables):
        """One probe as the launcher starts it; its last document."""
        text, _ = self.run(["dlrover-probe"], seconds, executable=self.program("dlrover-run"),
                           stdin=json.dumps(task), **variables)
        return json.loads(text.strip().splitlines()[-1])
