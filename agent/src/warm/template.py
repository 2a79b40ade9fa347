# The template of warm workers: an interpreter that has imported what workers import, and forks one when it is asked.
#
# It was started with the command of a worker, and is held here, before the script, while Python imports
# `sitecustomize`. In a forked worker this text ends, and the interpreter itself goes on to the script: what the script
# sees of `__main__`, sys.argv, sys.path, its frames and its end is made by Python, as in any other start. A template
# itself never goes on. START is progress/start.py, which took away what brought this here.
import sys


PROBED = 86


def leave(code=0):
    # Without handlers, of which the imported modules may have many.
    sys.modules["posix"]._exit(code)


if sys.modules["posix"].environ.get(b"DLROVER_WARM_TEMPLATE") == b"probe":
    # The guard asks whether Python comes here: if it did not, the template would run the script.
    leave(PROBED)

problem = None
known_before = set(sys.modules)
try:
    import os, _socket, gc, importlib, importlib.util, signal, time, warnings

    exec(compile(START, "<dlrover-run>", "exec"))
except BaseException as error:
    problem = error


def text_of(error):
    # One line, whatever it says.
    words = " ".join(str(error).split())
    return (type(error).__name__ + (": " + words if words else ""))[:300]


class Unfit(Exception):
    # Why this template must not be used.
    pass


# Read by native libraries when they are loaded or first used, which no Python code can watch.
NATIVE = (
    "LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "CUDA_", "NVIDIA_", "MACA_", "HIP_",
    "ROCR_", "TORCH_", "PYTORCH_", "PYTHON", "MALLOC_", "GLIBC_", "LC_", "LANG",
)
# By torch's name of the kind: what is there where such a device is. MetaX and ROCm are "cuda" for torch.
DEVICES = {
    "cuda": ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", "/dev/mxcd"),
    "xpu": ("/dev/dri",),
    "mtia": ("/dev",),
    "maca": ("/dev",),
}
# Packages that are left out, each of which may cost another start: their names fit into a line.
MOST_LEFT_OUT = 8
# Descriptors that forked processes may share.
HARMLESS = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/tty")
FRAME = 1 << 26


# What a package imports in the first step of a training, and takes seconds for.
LATE_IMPORTS = {"torch": "torch._dynamo"}


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
# Of the socket to the guard, and of the order that this process was started with again.
numbers = [int(number) for number in os.environ.pop("DLROVER_WARM_TEMPLATE").split(",")]
control = _socket.socket(fileno=numbers[0])
control.setblocking(True)
os.set_inheritable(control.fileno(), False)
environment = dict(os.environ)


def unpack_fds(ancillary):
    fds = []
    for level, kind, data in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            fds.extend(memoryview(data)[: len(data) // 4 * 4].cast("i"))
    return fds


def receive():
    # A length of 4 bytes, then that many bytes: parts that end with NUL. Descriptors come with the first byte.
    data, fds = bytearray(), []
    length = 4
    while len(data) < length:
        piece, ancillary, _flags, _address = control.recvmsg(min(length - len(data), 1 << 16), 256)
        fds.extend(unpack_fds(ancillary))
        if not piece:
            leave()
        data += piece
        if len(data) == 4 and length == 4:
            length = 4 + int.from_bytes(data, "little")
            if not 4 < length <= FRAME:
                leave(1)
    return bytes(data[4:-1]).split(bytes(1)), fds


def answer(*words):
    control.sendall(os.fsencode(" ".join(words)) + bytes([10]))


# What must be true of this process.


def threads():
    return len(os.listdir("/proc/self/task"))


def has_children():
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def descriptors():
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink("/proc/self/fd/" + fd)
        except OSError:
            # That of the listing.
            pass
    return found


def check_descriptors(before):
    for fd, target in descriptors().items():
        if before.get(fd) == target or target in HARMLESS:
            continue
        if target.startswith("/dev/") and not target.startswith("/dev/shm/"):
            raise Unfit("an import opened the device " + target)
        if not target.startswith("/"):
            raise Unfit("an import opened " + target + ", which workers would share")


def fork_on_trial(check):
    # Runs `check` in a child, which answers whether it is true there.
    with warnings.catch_warnings():
        # Threads of which the child is about to find out whether they matter.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if check() else 2
        finally:
            leave(code)
    _pid, status = os.waitpid(child, 0)
    return status == 0


def become_normal():
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def become_idle():
    # Only where it can be undone, which needs RLIMIT_NICE or CAP_SYS_NICE: a worker must not stay idle. A thread that
    # is idle by itself is no way to import without them: `signal.signal` fails there, and what libraries keep by
    # thread is lost with it. The result is whether it is idle.
    def can_return():
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        become_normal()
        return os.sched_getscheduler(0) == os.SCHED_OTHER

    try:
        if os.sched_getscheduler(0) == os.SCHED_OTHER and fork_on_trial(can_return):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            return True
    except OSError:
        pass
    return False


def forked_well():
    # torch lets no child of a process use devices that has as much as counted them. Without a device that is the same.
    torch = sys.modules.get("torch._C")
    for kind, devices in DEVICES.items():
        is_bad = getattr(torch, "_%s_isInBadFork" % kind, None)
        if is_bad is not None and is_bad() and any(os.path.exists(device) for device in devices):
            return False
    return True


def memory():
    # Its share of memory, in KiB.
    try:
        with open("/proc/self/smaps_rollup") as rollup:
            for line in rollup:
                if line.startswith("Pss:"):
                    return int(line.split()[1])
    except OSError:
        pass
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * (os.sysconf("SC_PAGE_SIZE") // 1024)


# What is imported.


def stamp_of(path):
    found = os.stat(path)
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)


def is_same(path, stamp):
    try:
        return stamp_of(path) == stamp
    except OSError:
        return False


def stamps_of_interpreter():
    # The file that runs, and the names by which it was found: a virtual environment may have a link of another one next
    # time. A script that starts the interpreter is a name too, and may choose another one without being changed.
    stamps = {os.readlink("/proc/self/exe"): stamp_of("/proc/self/exe")}
    for path in (sys.executable, own_argv[0]):
        if path and "/" in path:
            stamps[path] = stamp_of(path)
    return stamps


def is_installed(path):
    # Not edited between two starts, even where it is below the working directory.
    parts = path.split("/")
    roots = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix} - {"/", "/usr"}
    return (
        "site-packages" in parts
        or "dist-packages" in parts
        or any(path.startswith(root + "/lib") for root in roots)
    )


def is_of_user(path):
    return not is_installed(path) and any(path.startswith(folder + "/") for folder in (script_folder, os.getcwd()))


def file_of(module):
    spec = getattr(module, "__dict__", {}).get("__spec__")
    return spec.origin if getattr(spec, "has_location", False) else None


def import_one(name, is_learned):
    if name in sys.modules or name in ("__main__", "__mp_main__"):
        return
    try:
        spec = importlib.util.find_spec(name)
    except Exception as error:
        if not is_learned and not isinstance(error, ModuleNotFoundError):
            raise Unfit("importing `%s` failed: %s" % (name, text_of(error)))
        spec = None
    if spec is None:
        # Of the script's directory, or made while a module of another name was imported.
        if not is_learned:
            raise Unfit("there is no module `%s` outside of the directory of the script; check --warm-modules" % name)
        return
    places = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or ())
    if is_learned and any(is_of_user(place) for place in places if place):
        return
    try:
        importlib.import_module(name)
    except BaseException as error:
        raise Unfit("importing `%s` failed: %s" % (name, text_of(error)))


def imports_of_script():
    # Before a worker has run, what it imports is what its script names, wherever in it.
    import ast

    try:
        with open(sys.argv[0], "rb") as script:
            tree = ast.parse(script.read())
    except (OSError, ValueError, SyntaxError):
        return []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module] + [node.module + "." + alias.name for alias in node.names]
    return names + [LATE_IMPORTS[head] for head in LATE_IMPORTS if any(name.partition(".")[0] == head for name in names)]


def import_all(names, is_learned):
    os.environ.__class__ = Recording
    try:
        for name in names:
            import_one(name, is_learned)
    finally:
        os.environ.__class__ = Recording.__mro__[1]


def state():
    # What a program keeps that is started in the place of this one.
    with open("/proc/self/status") as status, open("/proc/self/limits") as limits:
        kept = [line for line in status if line.startswith(("Umask:", "SigBlk:", "SigIgn:"))]
        return kept + [limits.read(), os.getcwd(), sorted(os.sched_getaffinity(0))]


def nameless_file():
    # Some builds of Python 3.8 and later have no memfd_create.
    if hasattr(os, "memfd_create"):
        return os.memfd_create("dlrover-order")
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def start_again(without, before, is_idle):
    # Without these packages: by the command and in the environment by which this process was started, with the order that
    # it has received.
    if state() != before:
        raise Unfit("an import changed the working directory, CPUs, limits or signals of the process")
    if is_idle:
        become_normal()
    known = " ".join("%s=%s" % one for one in sorted(without.items()))
    copy = nameless_file()
    with open(copy, "wb", closefd=False) as file:
        file.write(os.fsencode(known) + bytes([10]) + bytes(1).join(order))
    for fd in descriptors():
        if int(fd) > 2:
            os.set_inheritable(int(fd), int(fd) in (copy, control.fileno()))
    role = {"DLROVER_WARM_TEMPLATE": "%d,%d" % (control.fileno(), copy)}
    os.execvpe(own_argv[0], own_argv, {**given, **role})


def take_order():
    # From the guard, or from this process before it started again.
    if len(numbers) == 1:
        return receive()[0], {}
    with open(numbers[1], "rb") as file:
        file.seek(0)
        known, _, parts = file.read().partition(bytes([10]))
    return parts.split(bytes(1)), dict(one.split("=") for one in os.fsdecode(known).split())


def stamps_of_modules():
    stamps = {}
    for module in list(sys.modules.values()):
        path = file_of(module)
        if path and path not in stamps:
            try:
                stamps[path] = stamp_of(path)
            except OSError:
                pass
    return stamps


def warm_up(names, is_learned, limit, idle):
    global files, interpreter, own_changes, heads, kept
    if problem is not None and not is_missing_sitecustomize(problem):
        raise Unfit("sitecustomize failed: " + text_of(problem))
    interpreter = stamps_of_interpreter()
    before = descriptors()
    is_idle = idle and become_idle()
    state_before = state()
    import_all([name for name in names if name.partition(".")[0] not in left_out], is_learned)
    if has_children():
        raise Unfit("an import started a process")
    # What reads a variable of one worker is not imported for all of them.
    if readers and len(left_out) + len(readers) <= MOST_LEFT_OUT:
        start_again({**left_out, **readers}, state_before, is_idle)
    check_descriptors(before)
    if not fork_on_trial(forked_well):
        raise Unfit("an import used or counted accelerators with torch, so forked workers could not use them; if it only counts them, "
            "set PYTORCH_NVML_BASED_CUDA_CHECK=1")
    # Threads of OpenBLAS are gone by now, because its handler stops them before a fork and starts them when they are
    # needed again. Others are not in a forked worker, and what waits for them there waits forever.
    if threads() > 1:
        count = threads() - 1
        raise Unfit("imports started %d thread%s, which forked workers would not have" % (count, "s"[: count - 1]))
    if memory() > limit:
        raise Unfit("the template takes %d MiB of memory, more than --warm-memory allows (%d MiB)" % (memory() // 1024, limit // 1024))
    files = stamps_of_modules()
    heads = {name.partition(".")[0] for name in sys.modules} - {name.partition(".")[0] for name in known_before}
    # What imports have set, or removed, as they would in any worker.
    now = dict(os.environ)
    own_changes = [(name, now.get(name)) for name in {**environment, **now} if now.get(name) != environment.get(name)]
    kept = set(sys.modules)
    gc.collect()
    # A collection in a worker leaves the pages of these objects alone, and so shared.
    gc.freeze()
    # A restart does not wait for a CPU that is idle.
    if is_idle:
        become_normal()


def is_missing_sitecustomize(error):
    return isinstance(error, ImportError) and error.name == "sitecustomize"


# Whether this worker may be forked.


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


checked = None


def check_files(generation):
    # Once for all workers of a generation.
    global checked
    if checked == generation:
        return
    for path, stamp in interpreter.items():
        if not is_same(path, stamp):
            raise Unfit("the interpreter %s has changed" % path)
    for path, stamp in files.items():
        if not is_same(path, stamp):
            raise Unfit("%s has changed" % path)
    try:
        beside = os.listdir(script_folder) if script_folder else []
    except OSError:
        beside = []
    for entry in beside:
        head = entry.partition(".")[0]
        # A module beside the script comes before one that is installed.
        if head in heads and (entry.endswith((".py", ".so", ".pyc")) or "." not in entry):
            if "." in entry or os.path.exists(os.path.join(script_folder, entry, "__init__.py")):
                raise Unfit("%s is beside the script and shadows an imported module" % entry)
    checked = generation


def check(argv, wanted, generation):
    # Up to the script, or -m and the module.
    end = len(own_argv) - len(sys.argv) + 1
    if argv[:end] != own_argv[:end]:
        raise Unfit("the command differs between workers")
    check_environment(wanted)
    check_files(generation)
    if threads() > 1:
        raise Unfit("the template has %d threads, and a forked worker would have only one of them" % threads())
    return end


# In the forked worker.


def become_worker(end, argv, wanted, raw, cpus, fds, released):
    global counter, identity, listing, process
    answerer = _socket.socket(fileno=fds[0])
    os.setsid()
    # Ends when the process between is gone, and the guard the parent.
    os.read(released, 1)
    os.close(released)
    import ctypes

    death_signal = ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
    if death_signal != 0 or os.getppid() != guard:
        leave(1)
    if cpus:
        os.sched_setaffinity(0, cpus)
    os.dup2(fds[1], 1)
    os.dup2(fds[2], 2)
    os.close(fds[1])
    os.close(fds[2])
    set_environment(raw)
    counter = os.environ.pop("DLROVER_PROGRESS_COUNTER", "")
    listing = os.environ.pop("DLROVER_WARM_LIST", "")
    process = os.getpid()
    try:
        identity = os.stat(counter)
    except OSError:
        counter = ""
    apply(of_wrapper + own_changes, os.environ)
    sys.argv[1:] = argv[end:]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[end:] = argv[end:]
    renew_streams()
    renew_randomness()
    for imported in set(sys.modules) - kept:
        del sys.modules[imported]
    answerer.sendall(b"%d" % os.getpid() + bytes([10]))
    if answerer.recv(1) != b"g":
        leave(1)
    answerer.close()
    control.close()


def set_environment(raw):
    import posix

    for name in list(os.environ):
        del os.environ[name]
    posix.environ.clear()
    for entry in raw:
        name, _, value = entry.partition(b"=")
        posix.environ[name] = value
        os.environ[os.fsdecode(name)] = os.fsdecode(value)
    if prelude_of_workers:
        drop_entry(prelude_of_workers)


def renew_streams():
    # In place, because an imported module may have kept one. Made as Python makes them: see create_stdio there.
    for stream, fd, name in ((sys.__stdout__, 1, "<stdout>"), (sys.__stderr__, 2, "<stderr>")):
        if stream is None:
            continue
        encoding, errors = stream.encoding, stream.errors
        # With -u there is no buffer between the stream and its file.
        unbuffered = not hasattr(stream.buffer, "raw")
        buffer = open(fd, "wb", 0 if unbuffered else -1, closefd=False)
        raw = buffer if unbuffered else buffer.raw
        raw.name = name
        by_line = not unbuffered and (fd == 2 or raw.isatty())
        lone = chr(10)
        stream.__init__(buffer, encoding, errors, lone, by_line, unbuffered)
        stream.mode = "w"


def renew_randomness():
    # `random` does so by itself.
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    started = sys.modules.get("logging")
    if started is not None and hasattr(started, "_startTime"):
        started._startTime = time.time_ns() if isinstance(started._startTime, int) else time.time()
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None:
        multiprocessing.current_process().authkey = os.urandom(32)


def serve_one(parts, fds):
    # Returns True in the worker.
    (generation, argc, cpu_count), rest = [int(part) for part in parts[:3]], parts[3:]
    argv, rest = rest[:argc], rest[argc:]
    cpus, raw = [int(cpu) for cpu in rest[:cpu_count]], rest[cpu_count:]
    wanted = environment_of(raw)
    apply(of_wrapper, wanted)
    argv = [os.fsdecode(argument) for argument in argv]
    try:
        end = check(argv, wanted, generation)
        released, release = os.pipe()
        between = os.fork()
    except (Unfit, OSError) as error:
        answer("refused", str(error) if isinstance(error, Unfit) else text_of(error))
        for fd in fds:
            os.close(fd)
        return False
    if between == 0:
        try:
            if os.fork() != 0:
                leave()
            os.close(release)
            become_worker(end, argv, wanted, raw, cpus, fds, released)
            return True
        except BaseException as error:
            os.write(fds[0], os.fsencode("failed " + text_of(error)) + bytes([10]))
            leave(1)
    os.waitpid(between, 0)
    os.close(release)
    os.close(released)
    for fd in fds:
        os.close(fd)
    return False


def serve():
    global guard, given, left_out, of_each, of_wrapper, order, own_argv, personal, script_folder, prelude_of_workers
    order, left_out = take_order()
    parts = order
    # The guard; the lengths of the command and the environment of this process; how much memory it may take (KiB);
    # whether it is to be idle; how the modules are known; where workers have their prelude; the names of the variables that
    # each worker has of its own; then the command, the environment and the modules.
    guard, argc, envc, limit, idle = [int(part) for part in parts[:5]]
    learned, prelude_of_workers = parts[5] == b"learned", os.fsdecode(parts[6])
    of_each, parts = set(os.fsdecode(parts[7]).split("=")), parts[8:]
    own_argv = [os.fsdecode(argument) for argument in parts[:argc]]
    given = environment_of(parts[argc : argc + envc])
    names = [os.fsdecode(name) for name in parts[argc + envc :] if name]
    is_script = sys.argv[:1] not in ([], ["-m"], ["-c"])
    script_folder = os.path.dirname(os.path.realpath(sys.argv[0])) if is_script else os.getcwd()
    # Differ in every worker, and are not those that a library reads for itself.
    personal = {"DLROVER_PROGRESS_COUNTER", "DLROVER_WARM_LIST", "PYTHONPATH"}
    try:
        of_wrapper = changes_of_wrapper(given)
        if learned and not names:
            if not is_script:
                raise Unfit("with -m, imports are unknown until a worker has made its first step of a torch optimizer; name them with --warm-modules")
            names = imports_of_script()
        warm_up(names, learned, limit, idle)
    except Unfit as error:
        answer("refused", str(error))
        leave(1)
    answer("ready", str(memory()), *["%s=%s" % one for one in sorted(left_out.items()) if one[0] not in sys.modules])
    while True:
        parts, fds = receive()
        if serve_one(parts, fds):
            return


try:
    serve()
except BaseException as error:
    try:
        answer("refused", text_of(error))
    finally:
        leave(1)
if problem is not None:
    # As if there had been none, which is how Python takes it.
    raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
