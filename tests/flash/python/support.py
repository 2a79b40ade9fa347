"""What the tests of the client have in common.

With DLROVER_CKPT_SOCK in the environment (and the identity of a rank that its saver takes), tests of one process talk
to the saver there. Those of faults, and of processes that are started again, have one of their own.
"""

import io
import itertools
import os
import shutil
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(HERE, "..", "..", "..", "packaging", "wheel", "python")
sys.path[:0] = [os.path.abspath(PACKAGE), HERE]

from reference_saver import ReferenceSaver  # noqa: E402

try:
    import torch
except ImportError:
    torch = None

# Variables of launchers that a test must not inherit.
_VARIABLES = (
    "DLROVER_CKPT_SOCK DLROVER_ROUND RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK TORCHELASTIC_RUN_ID "
    "TORCHELASTIC_RESTART_COUNT"
).split()


class ClientTest(unittest.TestCase):
    """A test with a directory and an environment of its own."""

    def setUp(self):
        from dlrover_run.flash_checkpoint import notices

        notices.forget()
        self.folder = tempfile.mkdtemp(prefix="flash-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self._given = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        self.addCleanup(os.environ.update, self._given)
        for name in _VARIABLES:
            os.environ.pop(name, None)
            self.addCleanup(os.environ.pop, name, None)
        self._stderr, sys.stderr = sys.stderr, io.StringIO()
        self.addCleanup(setattr, sys, "stderr", self._stderr)

    def saver(self, **options):
        """A saver for this test: that of the environment if there is one, else one in this process."""
        if "DLROVER_CKPT_SOCK" in self._given:
            os.environ.update(self._given)
        else:
            self.reference(**options)

    def reference(self, **options):
        """A saver in this process, whose replies can be changed."""
        saver = ReferenceSaver(**options).__enter__()
        self.addCleanup(saver.stop)
        os.environ["DLROVER_CKPT_SOCK"] = saver.address
        return saver

    @property
    def said(self):
        """The lines on standard error."""
        return sys.stderr.getvalue().splitlines()

    def assertEventually(self, condition):
        """Waits for what another thread does; only a defect takes long."""
        deadline = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def assertSaid(self, text):
        self.assertTrue(any(text in said for said in self.said), (text, self.said))


def crashes(write):
    """Calls `write` in a child that dies before its first change of the file system, in another before its second, ...

    Gives the number of each death; ends when a child has come to the end of `write`.
    """
    for number in itertools.count(1):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _die_before(number)
                write()
                code = 0
            finally:
                os._exit(code)
        code = os.waitpid(child, 0)[1]
        if code == 0:
            return
        assert code == _DEAD << 8, code
        yield number


_DEAD = 9


def _die_before(number):
    left = [number]

    def dying(call):
        def instead(*arguments, **options):
            left[0] -= 1
            if not left[0]:
                os._exit(_DEAD)
            return call(*arguments, **options)

        return instead

    for name in ("fsync", "mkdir", "rename", "replace", "rmdir", "unlink"):
        setattr(os, name, dying(getattr(os, name)))


def needs_torch(test):
    return unittest.skipIf(torch is None, "no torch")(test)


def lines(text):
    """Without the log of DeepSpeed, which transformers imports where it is installed."""
    return [line for line in text.splitlines() if not line.startswith("[")]


def environment(**variables):
    """The environment of a child process that finds the package, and programs of the interpreter's environment."""
    result = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    paths = [os.path.abspath(PACKAGE), HERE, os.environ.get("PYTHONPATH", "")]
    result["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    result["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    result.update(variables)
    return result


def same(one, other, path="state"):
    """Asserts that two states are equal: types, keys in their order, dtypes, shapes and bytes."""
    assert type(one) is type(other), (path, type(one), type(other))
    if isinstance(one, dict):
        assert list(one) == list(other), (path, list(one), list(other))
        for key in one:
            same(one[key], other[key], "%s.%s" % (path, key))
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), path
        for index, (mine, yours) in enumerate(zip(one, other)):
            same(mine, yours, "%s.%d" % (path, index))
    elif torch is not None and isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), (path, one.dtype, other.dtype)
        assert bytes_of(one) == bytes_of(other), path
    else:
        assert one == other or one != one and other != other, (path, one, other)


def bytes_of(tensor):
    """The elements of a tensor in the order of its indices."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
