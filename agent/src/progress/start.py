# The prelude of `--progress=auto`, which counts the optimizer steps of a script that says nothing of its progress.
#
# Python imports `sitecustomize` when it starts, and finds this one by the entry that the launcher put into PYTHONPATH.
# It takes away what brought it here and loads the `sitecustomize` that would have been loaded without it. What fails
# here leaves the script as it would run without. Every start compiles this text, so it is short, and any Python may
# start it, so its syntax is that of 2.7 and of 3; `COUNTING` is counting.py.
import os, sys

name, entry, ours = __name__, __file__[: -len("/sitecustomize.py")], sys.modules[__name__]
finder, waits = None, True


def drop_entry(entry):
    # Out of the environment, as the launcher has put it there.
    entries = os.environ.get("PYTHONPATH", "").split(":")
    if entries == [entry]:
        del os.environ["PYTHONPATH"]
    elif entry in entries:
        # Twice the entry and nothing else stands for a variable that was set to nothing.
        os.environ["PYTHONPATH"] = ":".join(one for one in entries if one != entry)


class DlroverRunProgress(object):
    # Finds no module. It is asked at every import, which is how it learns that torch's optimizers are there.
    def find_spec(self, *wanted, **named):
        global waits
        if waits and "torch.optim.optimizer" in sys.modules:
            try:
                if not sys.modules["torch.optim.optimizer"].__spec__._initializing:
                    waits = False
                    exec(compile(COUNTING, "<dlrover-run>", "exec"), globals())
            except Exception:
                pass


try:
    counter = os.environ.pop("DLROVER_PROGRESS_COUNTER", "")
    listing = os.environ.pop("DLROVER_WARM_LIST", "")
    sys.path[:] = [one for one in sys.path if one != entry]
    drop_entry(entry)
    sys.path_importer_cache.pop(entry, None)
    sys.modules["zipimport"]._zip_directory_cache.pop(entry, None)
    identity = os.stat(counter)
    process = os.getpid()
    if sys.version_info >= (3, 8):
        initial = listing and os.environ._data.copy()
        finder = DlroverRunProgress()
except Exception:
    pass
try:
    del sys.modules[name]
    import sitecustomize
except BaseException:
    # Python takes it out again, and it is Python that reports an error in it, or passes over that there is none.
    sys.modules[name] = ours
    raise
finally:
    if finder:
        sys.meta_path.insert(0, finder)
