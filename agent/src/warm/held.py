# The template of warm workers: an interpreter that has imported what workers import, and forks one when it is asked.
#
# It was started with the command of a worker, and is held here, before the script, while Python imports
# `sitecustomize`. In a forked worker this text ends, and the interpreter itself goes on to the script: what the script
# sees of `__main__`, sys.argv, sys.path, its frames and its end is made by Python, as in any other start. A template
# itself never goes on. The files of this folder are one text, in the order of progress/prelude.rs.
import sys


PROBED = 86


def leave(code=0):
    # Without handlers, of which the imported modules may have many.
    sys.modules["posix"]._exit(code)


if sys.modules["posix"].environ.get(b"DLROVER_WARM_TEMPLATE") == b"probe":
    # The guard asks whether Python comes here: if it did not, the template would run the script.
    leave(PROBED)

known_before = set(sys.modules)
try:
    import os, _socket, atexit, gc, importlib, importlib.util, signal, time, warnings
except BaseException:
    leave(1)
began = time.time_ns()


def text_of(error):
    # One line, whatever it says.
    words = " ".join(str(error).split())
    return (type(error).__name__ + (": " + words if words else ""))[:300]


class Unfit(Exception):
    # Why this template must not be used.
    pass
