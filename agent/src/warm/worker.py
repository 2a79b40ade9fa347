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
