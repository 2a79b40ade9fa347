# What is imported, and whether its files are still the same.


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


def import_all(names, is_learned):
    os.environ.__class__ = Recording
    try:
        for name in names:
            import_one(name, is_learned)
    finally:
        os.environ.__class__ = Recording.__mro__[1]


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
