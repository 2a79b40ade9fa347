# The order and the requests of the guard, and the answers.


FRAME = 1 << 26


# Of the socket to the guard, and of the file of the order that this process was started with.
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
    with open(numbers[1], "rb") as file:
        file.seek(0)
        known, _, parts = file.read().partition(bytes([10]))
    return parts.split(bytes(1)), dict(one.split("=") for one in os.fsdecode(known).split())


def take_list(entries):
    # Of a worker, as progress/listing.py has left it: its modules with their files, and the variables that the script has
    # changed, before it imported torch and since.
    modules, changes, changes_late = {}, {}, {}
    for entry in entries:
        kind, name, *rest = entry.split(chr(10), 2)
        if kind == "module" and rest:
            modules[name] = rest[0]
        elif kind in ("early", "late"):
            (changes if kind == "early" else changes_late)[name] = rest[0] if rest else None
    return modules, changes, changes_late


def warm_up(entries, is_learned, is_script, limit, idle):
    global files, interpreter, own_changes, heads, kept, number_of_cpus, of_template
    # At the end of a worker, after all handlers: what is frozen below would not be finalised.
    atexit.register(gc.unfreeze)
    modules, changes, changes_late = take_list(entries) if is_learned else ({}, {}, {})
    names = list(modules) if is_learned else entries
    packages_of_user.update((name, True) for name, path in modules.items() if "." not in name and is_of_user(path))
    if not modules and is_script:
        sources = sources_of_script()
        changes = changes_of(sources, not is_learned, idle)
        names = names or [name for source in sources[:1] for name in imports_of(source)]
    if problem is not None and not is_missing_sitecustomize(problem):
        raise Unfit("sitecustomize failed: " + text_of(problem))
    check_sitecustomize()
    interpreter = stamps_of_interpreter()
    before, shared_before = descriptors(), shared_memory()
    of_template = layout()
    number_of_cpus = len(os.sched_getaffinity(0))
    is_idle = idle and become_idle()
    state_before = state()
    import_all([name for name in names if name.partition(".")[0] not in left_out], is_learned)
    if has_children():
        raise Unfit("an import started a process")
    # What reads a variable of one worker is not imported for all of them.
    if readers and len(left_out) + len(readers) <= MOST_LEFT_OUT:
        start_again({**left_out, **readers}, state_before, is_idle)
    if ALL in read_early or ALL in read_late:
        raise Unfit("an import copies os.environ, in which each worker has values of its own")
    check_changes(changes, is_late=False)
    check_changes(changes_late, is_late=True)
    if modules and is_script:
        check_restored(sources_of_script(), {**changes, **changes_late})
    check_origins(modules)
    check_descriptors(before)
    check_shared_memory(shared_before)
    check_temporary()
    check_seeds()
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
    check_folder_of_script()
    kept = set(sys.modules)
    gc.collect()
    # A collection in a worker leaves the pages of these objects alone, and so shared.
    gc.freeze()
    # A restart does not wait for a CPU that is idle.
    if is_idle:
        become_normal()


def is_missing_sitecustomize(error):
    return isinstance(error, ImportError) and error.name == "sitecustomize"


def check(argv, wanted, cpus, generation):
    # Up to the script, or -m and the module.
    end = len(own_argv) - len(sys.argv) + 1
    if argv[:end] != own_argv[:end]:
        raise Unfit("the command differs between workers")
    check_environment(wanted)
    check_files(generation)
    if len(cpus) != number_of_cpus:
        what = (len(cpus), "s"[: len(cpus) - 1], number_of_cpus)
        raise Unfit("a worker has %d CPU%s, and the template has imported with %d: libraries count them" % what)
    if threads() > 1:
        raise Unfit("the template has %d threads, and a forked worker would have only one of them" % threads())
    return end


def serve_one(parts, fds):
    # Returns True in the worker.
    (generation, argc, cpu_count), rest = [int(part) for part in parts[:3]], parts[3:]
    argv, rest = rest[:argc], rest[argc:]
    cpus, raw = [int(cpu) for cpu in rest[:cpu_count]], rest[cpu_count:]
    wanted = environment_of(raw)
    apply(of_wrapper, wanted)
    argv = [os.fsdecode(argument) for argument in argv]
    try:
        cpus = cpus or os.sched_getaffinity(guard)
        end = check(argv, wanted, cpus, generation)
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
            become_worker(end, argv, raw, cpus, fds, released)
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
    global guard, given, left_out, of_each, of_wrapper, order, own_argv, script_folder, prelude_of_workers
    order, left_out = take_order()
    parts = order
    # The guard; the lengths of the command and the environment of this process; how much memory it may take (KiB);
    # whether it is to be idle, beside workers that train; how the modules are known; where workers have their prelude; the names of the variables that
    # each worker has of its own; then the command, the environment and the modules, or a worker's list.
    guard, argc, envc, limit, idle = [int(part) for part in parts[:5]]
    learned, prelude_of_workers = parts[5] == b"learned", os.fsdecode(parts[6])
    of_each, parts = set(os.fsdecode(parts[7]).split("=")), parts[8:]
    own_argv = [os.fsdecode(argument) for argument in parts[:argc]]
    given = environment_of(parts[argc : argc + envc])
    entries = [os.fsdecode(entry) for entry in parts[argc + envc :] if entry]
    is_script = sys.argv[:1] not in ([], ["-m"], ["-c"])
    script_folder = os.path.dirname(os.path.realpath(sys.argv[0])) if is_script else os.getcwd()
    try:
        of_wrapper = changes_of_wrapper(given)
        if learned and not entries and not is_script:
            raise Unfit("with -m, imports are unknown until a worker has made its first step of a torch optimizer; name them with --warm-modules")
        warm_up(entries, learned, is_script, limit, idle)
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
