# Runs in the names of counting.py after the first step of local rank 0: leaves what the template of the workers that come
# after this one is made of. An entry for each module, with its file, and for each variable that the program has changed,
# before torch's optimizers were imported (`early`) or since.


def leave_list():
    entries, ends = [], (chr(0), chr(10))
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__dict__", {}).get("__spec__")
        place = spec.origin if getattr(spec, "has_location", False) else "None" if module is None else ""
        entries.append("module%s%s%s%s" % (ends[1], name, ends[1], place))
    for kind, before, after in (("early", initial, early), ("late", early, os.environ._data.copy())):
        for name in {**before, **after}:
            if before.get(name) != after.get(name):
                change = (kind, os.fsdecode(name)) + ((os.fsdecode(after[name]),) if name in after else ())
                entries.append(ends[1].join(change))
    with open(listing, "wb") as file:
        file.write(os.fsencode(ends[0].join(entries)))


leave_list()
