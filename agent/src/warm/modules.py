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


def names_of(module):
    # Not by getattr, which runs code of the module: one that waits for its first use would be imported by it.
    try:
        return type(sys).__dict__["__dict__"].__get__(module) or {}
    except TypeError:
        return {}


def file_of(module):
    spec = names_of(module).get("__spec__")
    return spec.origin if getattr(spec, "has_location", False) else None


def places_of(name):
    # Where the module is; none where it is not found. For a submodule this imports the packages that it is in.
    spec = importlib.util.find_spec(name)
    if spec is None:
        return []
    return [spec.origin or ""] if spec.has_location else list(spec.submodule_search_locations or ("",))


def is_in_package_of_user(name):
    # Of the package, because looking for a module in it would run it. Of a package that is installed too, workers import
    # the one beside the script.
    head = name.partition(".")[0]
    beside = [os.path.join(script_folder, head + end) for end in (".py", "/__init__.py")]
    if head not in packages_of_user and head not in sys.modules and any(map(os.path.exists, beside)):
        packages_of_user[head] = True
    if head not in packages_of_user:
        try:
            places = [] if head in sys.modules else places_of(head)
        except Exception:
            places = []
        packages_of_user[head] = any(is_of_user(place) for place in places)
    return packages_of_user[head]


packages_of_user = {}


def import_one(name, is_learned):
    if name in sys.modules or name in OF_PROGRAM or (is_learned and is_in_package_of_user(name)):
        return
    # Those it is in, in the same manner.
    if "." in name:
        import_one(name.rpartition(".")[0], is_learned)
    try:
        places = places_of(name)
    except Exception as error:
        if not is_learned and not isinstance(error, ModuleNotFoundError):
            raise Unfit("importing `%s` failed: %s" % (name, text_of(error)))
        places = []
    if not places:
        # Of the script's directory, or made while a module of another name was imported.
        if not is_learned:
            raise Unfit("there is no module `%s` outside of the directory of the script; check --warm-modules" % name)
        return
    if is_learned and any(is_of_user(place) for place in places):
        return
    sys.meta_path.append(not_found)
    try:
        importlib.import_module(name)
    except BaseException as error:
        raise Unfit("importing `%s` failed: %s" % (name, text_of(error)))
    finally:
        sys.meta_path.remove(not_found)


# Of each program its own.
OF_PROGRAM = ("__main__", "__mp_main__", "sitecustomize", "usercustomize")


class NotFound:
    # The last finder: remembers what imports have looked for, and would find where the path is another one.
    names = set()

    def find_spec(self, name, path=None, target=None):
        self.names.add(name)


not_found = NotFound()


def import_all(names, is_learned):
    watch_seeds(True)
    record(True)
    try:
        for name in names:
            import_one(name, is_learned)
    finally:
        record(False)
        watch_seeds(False)


def check_origins(learned):
    # That what was imported here is what workers import. `learned` has the file of each of their modules: nothing for one
    # that is not of a file, and "None" for a name that is hidden from imports.
    for name, theirs in learned.items():
        module = sys.modules.get(name)
        if name in OF_PROGRAM or name in known_before:
            continue
        if module is None:
            if name in not_found.names and theirs not in ("", "None"):
                what = (name, theirs)
                raise Unfit("workers import `%s` from %s, and an import in the template does not find it; add its directory to PYTHONPATH" % what)
            continue
        own = names_of(module).get("__file__")
        own = own if type(own) is str else ""
        if own == theirs:
            continue
        if theirs == "None":
            raise Unfit("an import in the template imports `%s`, which workers do not import" % name)
        if not theirs or not own or os.path.realpath(own) != os.path.realpath(theirs):
            what = (name, theirs or "no file", own or "no file")
            raise Unfit("workers import `%s` from %s, and the template from %s; add the directory of the former to PYTHONPATH" % what)


def stamps_of_modules():
    stamps, now = {}, time.time_ns() + TICK
    for module in list(sys.modules.values()):
        path = file_of(module)
        if path and path not in stamps:
            try:
                # One that has changed since the imports began may have been read before. A date in the future is none of
                # a change.
                found = os.stat(path)
                is_new = any(began - TICK <= at <= now for at in (found.st_mtime_ns, found.st_ctime_ns))
                stamps[path] = None if is_new else stamp_of(path)
            except OSError:
                pass
    return stamps


# The clock of files is behind that of processes by as much.
TICK = 10 ** 7


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
    check_folder_of_script()
    checked = generation


def check_folder_of_script():
    # A module there comes before one that is installed.
    missing = {name for name in not_found.names if "." not in name and name not in sys.modules}
    try:
        beside = os.listdir(script_folder) if script_folder else []
    except OSError:
        beside = []
    for entry in beside:
        head = entry.partition(".")[0]
        if (head in heads or head in missing) and (entry.endswith((".py", ".so", ".pyc")) or "." not in entry):
            if "." in entry or os.path.exists(os.path.join(script_folder, entry, "__init__.py")):
                what = " and shadows an imported module" if head in heads else ", and an import in the template does not find it"
                raise Unfit("%s is beside the script%s" % (entry, what))
