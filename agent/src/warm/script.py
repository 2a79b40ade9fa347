# What is known of the script without running it.


# What a package imports in the first step of a training, and takes seconds for.
LATE_IMPORTS = {"torch": "torch._dynamo"}


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
