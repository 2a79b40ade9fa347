# In the forked worker.


def become_worker(end, argv, raw, cpus, fds, released):
    global counter, early, identity, initial, listing, process
    answerer = _socket.socket(fileno=fds[0])
    os.setsid()
    # Ends when the process between is gone, and the guard the parent.
    os.read(released, 1)
    os.close(released)
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    death_signal = libc.prctl(1, signal.SIGKILL, 0, 0, 0)
    if death_signal != 0 or os.getppid() != guard:
        leave(1)
    if set(cpus) != os.sched_getaffinity(0):
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
    # For the list that a template of later workers is made of.
    initial = early = os.environ._data.copy()
    sys.argv[1:] = argv[end:]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[end:] = argv[end:]
    renew_streams()
    renew_start()
    for imported in set(sys.modules) - kept:
        del sys.modules[imported]
    answerer.sendall(b"%d" % os.getpid() + bytes([10]))
    if answerer.recv(1) != b"g":
        leave(1)
    # Only now, as after an exec: what is seen with the command of a worker runs the script.
    show(ctypes, libc, argv[end:], raw)
    answerer.close()
    control.close()


def layout():
    # The command of this process, and where the parts of its memory are, which is the same in forked ones.
    with open("/proc/self/cmdline", "rb") as file:
        command = file.read().split(bytes(1))[:-1]
    with open("/proc/self/stat") as file:
        fields = [0, 0, 0] + file.read().rpartition(")")[2].split()
    code, data, heap, stack = fields[26:28], fields[45:47], fields[47], fields[28]
    return command[: len(command) - len(sys.argv) + 1], [int(place) for place in (*code, *data, heap, stack)]


def show(ctypes, libc, arguments, raw):
    # In /proc/PID, the command and the environment of this worker instead of those of the template. Where the kernel was
    # built without CONFIG_CHECKPOINT_RESTORE this fails, and does no harm. `ctypes` is no longer among the worker's modules.
    variables = dict(entry.partition(b"=")[::2] for entry in raw)
    set_by_wrapper = [one for one in of_wrapper if not is_of_python(one[0])]
    apply([(os.fsencode(name), None if value is None else os.fsencode(value)) for name, value in set_by_wrapper], variables)
    command, (*places, stack) = of_template
    command = b"".join([argument + bytes(1) for argument in command + [os.fsencode(argument) for argument in arguments]])
    shown = command + b"".join([name + b"=" + value + bytes(1) for name, value in variables.items()])
    PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS = 1, 2, 2, 32
    libc.mmap.restype = libc.sbrk.restype = number = ctypes.c_size_t
    place = libc.mmap(None, number(len(shown)), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, number(0))
    if place == number(-1).value:
        return
    ctypes.memmove(place, shown, len(shown))
    middle, end = place + len(command), place + len(shown)
    # struct prctl_mm_map: the parts of the program, nothing new of the auxiliary vector and no other executable.
    values = [*places, libc.sbrk(0), stack, place, middle, middle, end, 0]
    parts = b"".join([value.to_bytes(8, sys.byteorder) for value in values]) + bytes(4) + b"%c" % 255 * 4
    PR_SET_MM, PR_SET_MM_MAP = 35, 14
    libc.prctl(PR_SET_MM, number(PR_SET_MM_MAP), parts, number(len(parts)), number(0))


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


def renew_start():
    renew_seeds()
    started = sys.modules.get("logging")
    if started is not None and hasattr(started, "_startTime"):
        started._startTime = time.time_ns() if isinstance(started._startTime, int) else time.time()
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None:
        multiprocessing.current_process().authkey = os.urandom(32)
