"""Where the items of a .distcp file are: what a client computes before a save, from the meta alone."""


def weight(node):
    if node is None or isinstance(node, (bool, int)):
        return 16
    if isinstance(node, str):
        return 16 + len(node.encode())
    ((tag, value),) = ((tag, value) for tag, value in node.items() if tag != "a")
    if tag == "f":
        return 16
    if tag == "i":
        return 16 + len(value)
    if tag == "p":
        return 48 + value[1]
    if tag in ("l", "t"):
        return 48 + sum(weight(item) for item in value)
    attributes = weight(node["a"]) if "a" in node else 0
    return 48 + sum(weight(key) + weight(item) for key, item in value) + attributes


def length(node, tensors, item_size):
    if isinstance(node, dict) and "T" in node:
        _, dtype, shape = tensors[node["T"]][:3]
        elements = 1
        for size in shape:
            elements *= size
        return 768 + 64 * max(0, len(shape) - 8) + elements * item_size(dtype) + 388
    return -(-(weight(node) + 384) // 512) * 512


def extents(meta, item_size):
    """(offset, length) of each item, in the order of the file."""
    items = dict(meta["tree"]["d"])["items"]["d"]
    found, end = [], 0
    for _, node in items:
        offset = -(-end // 64) * 64
        found.append((offset, length(node, meta["tensors"], item_size)))
        end = offset + found[-1][1]
    return found
