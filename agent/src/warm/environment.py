# The environment: what imports read of it, and whether a worker's is that of the template.


# Read by native libraries when they are loaded or first used, which no Python code can watch, and by tqdm and fsspec, which
# look through all variables when they are imported.
NATIVE = (
    "LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "CUDA_", "NVIDIA_", "MACA_", "HIP_",
    "ROCR_", "TORCH_", "PYTORCH_", "PYTHON", "MALLOC_", "GLIBC_", "LC_", "LANG",
    "TQDM_", "FSSPEC_",
)


# Of these, what libraries may read that are loaded after torch.
NATIVE_LATE = ("LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "MALLOC_", "GLIBC_",
    "TQDM_", "FSSPEC_")
# Only Python code of torch reads it, so that it is known whether an import does. Lightning sets it.
NOT_NATIVE = ("PYTORCH_NVML_BASED_CUDA_CHECK",)
# Differ in every worker, and are not those that a library reads for itself.
PERSONAL = {"DLROVER_PROGRESS_COUNTER", "DLROVER_WARM_LIST", "PYTHONPATH"}
# Packages that are left out, each of which may cost another start: their names fit into a line.
MOST_LEFT_OUT = 8


class Recording(type(os.environ)):
    # The environment while modules are imported: remembers which names were read, and by which package a name whose value
    # each worker has of its own. What goes through all items looks for names of its own, as tqdm does. A copy of all of
    # them (dict, copy) may be read or kept, so that it counts as read.
    def __iter__(self):
        names = list(super().__iter__())
        to_come[:] = [package_at_work(), *names[::-1]]
        return iter(names)

    def __getitem__(self, name):
        if len(to_come) > 1 and to_come[-1] == name and to_come[0] == package_at_work():
            to_come.pop()
            if len(to_come) == 1 and sys._getframe(1).f_globals.get("__name__") not in VIEWS:
                on_read(ALL)
        elif isinstance(name, (str, bytes)):
            on_read(os.fsdecode(name))
        return super().__getitem__(name)


# What a view of the environment belongs to; what passes a copy on to a process that it waits for; what looks in a copy for
# names of its own.
VIEWS = ("_collections_abc", "collections.abc", "ctypes.util", "fsspec.config")
# For a variable: all of them.
ALL = "os.environ"


def on_read(name):
    # In the list of a worker, the modules after torch's optimizers were imported later than the changes that it names
    # first.
    reads = read_late if "torch.optim.optimizer" in sys.modules else read_early
    if name not in reads:
        reads[name] = package_at_work()
    if name in of_each or name == ALL:
        blame(package_at_work(), name)


def record(is_recorded):
    for variables in (os.environ, os.environb):
        variables.__class__ = Recording if is_recorded else Recording.__mro__[1]


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
    is_word = name == ALL or name.isidentifier()
    if package.isidentifier() and package not in left_out and package != __name__ and is_word:
        readers.setdefault(package[:64], name[:64])


read_early, read_late, to_come, of_each, readers, left_out = {}, {}, [], set(), {}, {}


def check_sitecustomize():
    # It was imported before the names were known.
    for name in sorted({*read_early, *read_late} & ({*of_each, ALL} - PERSONAL)):
        raise Unfit("sitecustomize reads %s, whose value differs between workers" % name)


def check_changes(changes, is_late):
    # Of the script, which has not run here. What an import changes in the same manner, it changes here too.
    now = dict(os.environ)
    for name, value in sorted(changes.items()):
        if name in PERSONAL or (now.get(name) == value and value is not UNKNOWN):
            continue
        reader = read_late.get(name) or (None if is_late else read_early.get(name))
        if name in read_late or (name in read_early and not is_late):
            what = "`%s` reads while it is imported" % reader if reader else "an import reads"
        elif name.startswith("PYTHON"):
            # The interpreter has read it before the script.
            continue
        elif name.startswith(NATIVE_LATE if is_late else NATIVE) and name not in NOT_NATIVE:
            what = "libraries read when they are loaded"
        else:
            continue
        raise Unfit("the script changes %s, which %s; set it in the environment of the job" % (name, what))


# A value that is not known before the script runs.
UNKNOWN = object()


def check_environment(wanted):
    was_read = {*read_early, *read_late}
    names = was_read | {name for name in {**environment, **wanted} if name.startswith(NATIVE)}
    for name in sorted(names):
        if environment.get(name) != wanted.get(name) and name not in PERSONAL:
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
    names = [name for name in names if name not in PERSONAL]
    of_pyenv = [name for name in names if name.lstrip("_").startswith("PYENV_")]
    for name in names:
        if not is_of_python(name) and (not of_pyenv or not (name in of_pyenv or name in SHELL)):
            raise Unfit("a wrapper of the interpreter, a .pth file or sitecustomize changes " + name)
    return [(name, environment.get(name)) for name in names]


def is_of_python(name):
    # PEP 538: where the locale is C, each interpreter sets this before it runs anything.
    return name == "LC_CTYPE" and environment.get(name) in ("C.UTF-8", "C.utf8", "UTF-8")


def apply(changes, variables):
    for name, value in changes:
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value
