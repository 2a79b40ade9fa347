# Runs in the names of counting.py after the first step of local rank 0: leaves what the template of the workers that come
# after this one is made of. An entry for each module, with its file, and for each variable that the program has changed,
# before torch's optimizers were imported (`early`) or since.


def leave_list():
    end, none = chr(10), {}
    entries = [
        "module%s%s%s%s" % (end, name, end, None if module is None else getattr(module, "__dict__", none).get("__file__") or "")
        for name, module in list(sys.modules.items())
    ]
    for kind, before, after in (("early", initial, early), ("late", early, os.environ._data.copy())):
        for name in {**before, **after}:
            if before.get(name) != after.get(name):
                change = (kind, os.fsdecode(name)) + ((os.fsdecode(after[name]),) if name in after else ())
                entries.append(end.join(change))
    with open(listing, "wb") as file:
        file.write(os.fsencode(chr(0).join(entries)))


leave_list()
