# What is known of the script without running it: before a worker has run, there is no list of its modules and changes.
# What a package imports in the first step of a training, and takes seconds for.
LATE_IMPORTS = {"torch": "torch._dynamo"}
# Files of the user that are read, at most.
MOST_FILES = 1000
# What decides which file an import finds; functions that change it; methods that change nothing.
PATHS = ("sys.path", "sys.meta_path", "sys.path_hooks", "sys.modules")
ADDERS = ("site.addsitedir", "site.addpackage")
VARIABLES = ("os.environ", "os.environb")
READING = ("copy", "count", "get", "index", "items", "keys", "values")


class Source:
    # A file of the user: what it imports, and what it changes that imports see.
    def __init__(self, path):
        self.path, self.names, self.changes, self.problem = path, [], [], None
        # The lines that set a variable, with its name where it is written there, and whether that changes it.
        self.places = []
        self.aliases = {}
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
        nodes = list(ast.walk(tree))
        for node in nodes:
            self.on_import(node)
        for node in nodes:
            self.on_change(node)

    def on_import(self, node):
        if isinstance(node, ast.Import):
            self.names += [alias.name for alias in node.names]
            self.aliases.update((alias.asname or alias.name.partition(".")[0], alias.name if alias.asname else None)
                for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            joint = "" if start.endswith(".") else "."
            self.names += [start] * bool(node.module) + [start + joint + alias.name for alias in node.names]
            self.aliases.update((alias.asname or alias.name, start + joint + alias.name) for alias in node.names)

    def name_of(self, node):
        # By its full name: `environ` may be os.environ.
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id) or node.id
        if isinstance(node, ast.Attribute):
            return self.name_of(node.value) + "." + node.attr
        return ""

    def on_change(self, node):
        if isinstance(node, ast.Call):
            self.on_call(node)
        elif isinstance(node, (ast.Attribute, ast.Name)) and not isinstance(node.ctx, ast.Load):
            if self.name_of(node) in PATHS and isinstance(node, ast.Attribute):
                self.on_path(node, self.name_of(node))
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            if self.name_of(node.value) in PATHS:
                self.on_path(node, self.name_of(node.value))
        # Of a subscript of the environment, the name and what is assigned.
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if self.name_of(target) in VARIABLES:
                    self.on_names(node, node.value)
                elif isinstance(target, ast.Subscript) and self.name_of(target.value) in VARIABLES:
                    self.add(node, target.slice, node.value if isinstance(node, ast.Assign) else None)
                elif isinstance(target, (ast.Tuple, ast.List)):
                    for one in ast.walk(target):
                        if isinstance(one, ast.Subscript) and self.name_of(one.value) in VARIABLES:
                            self.add(node, one.slice, None)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and self.name_of(target.value) in VARIABLES:
                    self.add(node, target.slice, None, is_removed=True)
        elif isinstance(node, (ast.For, ast.With)):
            heads = [node.target] if isinstance(node, ast.For) else [item.optional_vars for item in node.items]
            for one in [inner for head in heads if head for inner in ast.walk(head)]:
                if isinstance(one, ast.Subscript) and self.name_of(one.value) in VARIABLES:
                    self.add(node, one.slice, None)

    def on_call(self, node):
        name = self.name_of(node.func)
        owner, _, method = name.rpartition(".")
        if name in ADDERS:
            self.on_path(node, "sys.path")
        elif name in ("os.putenv", "os.unsetenv") and node.args:
            self.add(node, node.args[0], None)
        elif owner in PATHS and method not in READING:
            self.on_path(node, owner)
        elif owner in VARIABLES and method not in READING:
            if method == "setdefault" and node.args:
                self.add(node, node.args[0], (node.args + [None])[1], is_default=True)
            elif method == "pop" and node.args:
                self.add(node, node.args[0], None, is_removed=True)
            elif method == "update":
                for argument in node.args:
                    self.on_names(node, argument)
                for keyword in node.keywords:
                    if keyword.arg is None:
                        self.on_names(node, keyword.value)
                    else:
                        self.add(node, ast.Constant(keyword.arg), keyword.value)
            else:
                self.add(node, None, None)

    def on_path(self, node, name):
        self.problem = self.problem or (node.lineno, name)

    def on_names(self, node, given):
        if isinstance(given, ast.Dict) and None not in given.keys:
            for name, value in zip(given.keys, given.values):
                self.add(node, name, value)
        elif self.name_of(given) not in VARIABLES:
            self.add(node, None, None)

    def add(self, node, name, value, is_default=False, is_removed=False):
        name, value = text_in(name), text_in(value)
        is_same = environment.get(name) == value if value is not None or is_removed else False
        is_same = is_same or (is_default and name in environment)
        self.places.append((node.lineno, name, not is_same))
        if name is not None and (is_default if name in environment else is_removed):
            return
        self.changes.append((node.lineno, name, None if is_removed else UNKNOWN if value is None else value))


def text_in(node):
    # Python 3.8 has an Index between.
    node = getattr(node, "value", None) if type(node).__name__ == "Index" else node
    value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
    return os.fsdecode(value) if isinstance(value, (str, bytes)) else None


def files_of(source, name):
    # Those of the user that this import may run: with each package of its name.
    stem = name.lstrip(".")
    level = len(name) - len(stem)
    if level:
        folder = source.path
        for _ in range(level):
            folder = os.path.dirname(folder)
        roots = [folder]
    else:
        roots = [script_folder] + [entry for entry in sys.path if is_of_user(entry + "/x")]
    for root in roots:
        path = root
        for part in stem.split("."):
            path = os.path.join(path, part)
            yield path + ".py"
            yield os.path.join(path, "__init__.py")


def sources_of_script():
    global ast
    import ast

    # The script, and what it imports of the user's. What cannot be read fails in the worker too, or is none.
    sources, seen, paths = [], set(), [os.path.realpath(sys.argv[0])]
    while paths and len(sources) < MOST_FILES:
        path = paths.pop(0)
        if path in seen:
            continue
        seen.add(path)
        try:
            source = Source(path)
        except (OSError, ValueError, SyntaxError, RecursionError):
            continue
        sources.append(source)
        paths += [file for name in source.names for file in files_of(source, name) if is_of_user(file)]
    return sources


def imports_of(source):
    names = [name for name in source.names if not name.startswith(".")]
    return names + [LATE_IMPORTS[head] for head in LATE_IMPORTS if any(name.partition(".")[0] == head for name in names)]


def check_restored(sources, changes):
    # What is as before in the list of a worker may have been another value while it imported: if it is set twice, or
    # together with others, and is not one of `changes`.
    places = [(source.path, *place) for source in sources for place in source.places]
    names = [name for _, _, name, _ in places]
    for path, line, name, is_change in places:
        is_read = is_change and (name in read_early or name in read_late)
        if is_read and name not in changes and name not in PERSONAL and (None in names or names.count(name) > 1):
            reader = read_early.get(name) or read_late.get(name)
            what = "`%s` reads while it is imported" % reader if reader else "an import reads"
            text = "line %d of %s changes %s, which %s, and the script may change it back; set it in the environment of the job"
            raise Unfit(text % (line, path, name, what))


def changes_of(sources, is_given, has_trained):
    # The variables that these files change before or while they import, with their values. What helps is the list of a
    # worker.
    if has_trained:
        instead = "leave out --warm-modules" if is_given else "use --progress=auto"
    else:
        instead = "use --warm=restart" + (" without --warm-modules" if is_given else "")
    changes = {}
    for source in sources:
        if source.problem:
            line, what = source.problem
            remedy = "add the directory to PYTHONPATH, or " + instead if what == "sys.path" else instead
            text = "line %d of %s changes %s, so the template may import other files than workers; %s"
            raise Unfit(text % (line, source.path, what, remedy))
        for line, name, value in source.changes:
            if name is None:
                text = "line %d of %s changes variables of the environment that it does not name; set them in the environment of the job, or %s"
                raise Unfit(text % (line, source.path, instead))
            changes[name] = value if changes.get(name, value) == value else UNKNOWN
    return changes
