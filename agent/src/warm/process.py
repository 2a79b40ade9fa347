# What must be true of the process of the template.


# By torch's name of the kind: what is there where such a device is. MetaX and ROCm are "cuda" for torch.
DEVICES = {
    "cuda": ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", "/dev/mxcd"),
    "xpu": ("/dev/dri",),
    "mtia": ("/dev",),
    "maca": ("/dev",),
}


# Descriptors that forked processes may share.
HARMLESS = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/tty")


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


def shared_memory():
    # What is written there by one process, those that are forked later read: shared memory and semaphores.
    with open("/proc/self/maps") as maps:
        fields = [line.split(None, 5) for line in maps]
    return {(one[4], one[5].strip()) for one in fields if len(one) == 6 and one[1][1] == "w" and one[1][3] == "s"}


def check_shared_memory(before):
    for _inode, path in sorted(shared_memory() - before):
        raise Unfit("an import made shared memory (%s), which workers would share" % path.replace(" (deleted)", ""))


class Watched:
    # The module `os` as `tempfile` sees it while modules are imported: remembers what is made, and by which package.
    def __getattr__(self, name):
        return getattr(os, name)

    def mkdir(self, path, *rest, **named):
        os.mkdir(path, *rest, **named)
        temporary[path] = package_at_work()

    def open(self, path, flags, *rest, **named):
        fd = os.open(path, flags, *rest, **named)
        if flags & os.O_CREAT:
            temporary[path] = package_at_work()
        return fd


temporary = {}


def check_temporary():
    # The first worker to end removes it, and others have the same.
    for path, package in temporary.items():
        if os.path.lexists(path):
            what = (package, os.fsdecode(path))
            raise Unfit("`%s` makes the temporary file or directory %s while it is imported, which workers would share" % what)


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
