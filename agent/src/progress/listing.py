# Runs in the names of counting.py after the first step of local rank 0: leaves what the template of the workers that come
# after this one is made of. An entry for each module, with its file, and for each variable that the program has changed,
# before torch's optimizers were imported (`early`) or since.


def path_of_listed(module):
    # Not by getattr, which runs code of the module: one that waits for its first use would be imported by it.
    if module is None:
        return "None"
    try:
        path = type(sys).__dict__["__dict__"].__get__(module).get("__file__")
    except (AttributeError, TypeError):
        path = None
    return path if type(path) is str else ""


def leave_list():
    end = chr(10)
    waiting = getattr(sys.modules.get("importlib.util"), "_LazyModule", None)
    entries = [
        "module%s%s%s%s" % (end, name, end, path_of_listed(module))
        for name, module in list(sys.modules.items()) if type(name) is str and type(module) is not waiting
    ]
    for kind, before, after in (("early", initial, early), ("late", early, variables())):
        for name in {**before, **after}:
            if before.get(name) != after.get(name):
                change = (kind, os.fsdecode(name)) + ((os.fsdecode(after[name]),) if name in after else ())
                entries.append(end.join(change))
    with open(listing, "wb") as file:
        file.write(os.fsencode(chr(0).join(entries)))


leave_list()
