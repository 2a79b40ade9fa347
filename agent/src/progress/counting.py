# Runs in the names of start.py, once torch's optimizers are there: counts each of their steps.

# Another list, because this one is being iterated, by the import that led here and maybe by other threads.
sys.meta_path = [one for one in sys.meta_path if one is not finder]
count = None


def variables():
    # The program may have put another mapping in the place of os.environ.
    if hasattr(os.environ, "_data"):
        return os.environ._data.copy()
    return {os.fsencode(variable): os.fsencode(value) for variable, value in os.environ.items()}


def on_optimizer_step(optimizer, args, kwargs):
    try:
        count[0] += 1
    except Exception:
        # The first step. Not earlier, because an import within a finder may wait for another thread forever.
        open_counter()


def open_counter():
    global count
    count = [0]
    try:
        import mmap

        file = os.open(counter, os.O_RDWR | os.O_CLOEXEC)
        try:
            found = os.fstat(file)
            # The number may belong to another file by now, and a forked child is not the worker.
            is_ours = (found.st_dev, found.st_ino) == (identity.st_dev, identity.st_ino)
            if is_ours and found.st_size == 8 and os.getpid() == process:
                mapped = memoryview(mmap.mmap(file, 8)).cast("Q")
                os.register_at_fork(after_in_child=stop_counting)
                try:
                    # Before the step is counted, because that starts the template, which is made of the list.
                    if listing and mapped[0] == 0:
                        exec(compile(LISTING, "<dlrover-run>", "exec"), globals())
                finally:
                    # Also when the handler of a signal raises meanwhile. No other code of the script runs there.
                    mapped[0] += 1
                    count = mapped
        finally:
            os.close(file)
    except Exception:
        pass


def stop_counting():
    global count
    count = [0]


sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(on_optimizer_step)
try:
    early = listing and variables()
except Exception:
    # A list that lacks changes would be worse than none.
    listing = ""
