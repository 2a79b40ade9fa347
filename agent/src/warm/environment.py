# The environment: what imports read of it, and whether a worker's is that of the template.


# Read by native libraries when they are loaded or first used, which no Python code can watch.
NATIVE = (
    "LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "CUDA_", "NVIDIA_", "MACA_", "HIP_",
    "ROCR_", "TORCH_", "PYTORCH_", "PYTHON", "MALLOC_", "GLIBC_", "LC_", "LANG",
)


class Recording(type(os.environ)):
    # The environment while modules are imported: remembers which names were read, and by which package a name whose value
    # each worker has of its own. What reads all of it, one after the other, looks for names of its own, as tqdm does.
    def __iter__(self):
        names = list(super().__iter__())
        to_come[:] = names[::-1]
        return iter(names)

    def __getitem__(self, name):
        if to_come[-1:] == [name]:
            to_come.pop()
        else:
            was_read.add(name)
            if name in of_each:
                blame(package_at_work(), name)
        return super().__getitem__(name)


def package_at_work():
    # That of the module whose import has come to the present line. If that one is left out already, it is here because
    # another one imports it, which is to be left out too.
    frame, package = sys._getframe(1), ""
    while frame:
        if frame.f_code.co_name == "<module>":
            package = str(frame.f_globals.get("__name__")).partition(".")[0]
            if package not in left_out:
                break
        frame = frame.f_back
    return package


def blame(package, name):
    # Code that is no module's may have any name, and both go into a line of words.
    if package.isidentifier() and package not in left_out and package != __name__ and name.isidentifier():
        readers.setdefault(package[:64], name[:64])


was_read, to_come, of_each, readers, left_out = set(), [], set(), {}, {}


def check_environment(wanted):
    names = was_read | {name for name in {**environment, **wanted} if name.startswith(NATIVE)}
    for name in sorted(names):
        if environment.get(name) != wanted.get(name) and name not in personal:
            reason = "an import has read it" if name in was_read else "libraries read it when they are loaded"
            raise Unfit("%s differs from its value in the template, and %s" % (name, reason))


def environment_of(raw):
    entries = [entry.partition(b"=") for entry in raw]
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in entries}


# What pyenv's shim of an interpreter changes: the same for all workers.
SHELL = ("PATH", "PWD", "OLDPWD", "SHLVL", "_")


def changes_of_wrapper(given):
    # What a wrapper of the interpreter sets, a forked worker has only if it is known to be the same for each.
    names = [name for name in sorted({**environment, **given}) if environment.get(name) != given.get(name)]
    names = [name for name in names if name not in personal]
    of_pyenv = [name for name in names if name.lstrip("_").startswith("PYENV_")]
    for name in names:
        if not of_pyenv or not (name in of_pyenv or name in SHELL):
            raise Unfit("a wrapper of the interpreter changes " + name)
    return [(name, environment.get(name)) for name in names]


def apply(changes, variables):
    for name, value in changes:
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value
