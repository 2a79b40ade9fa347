"""Writes a directory of torch.distributed.checkpoint from slots, as a saver does: to see whether `.metadata` fits."""

import io
import json
import os
import zipfile

import torch
from dlrover_run.flash_checkpoint import dcp_plan
from dlrover_run.flash_checkpoint.restoring import Restored


def write(folder, slots):
    """`slots`: the reference saver's slots of all ranks, in order."""
    os.makedirs(folder)
    for rank, slot in enumerate(slots):
        descriptor = os.open("/proc/self/fd/%d" % slot.descriptor, os.O_RDONLY)
        restored = Restored(slot.number, slot.size, descriptor)
        state, raw = restored.take_state(), os.pread(slot.descriptor, slot.size, 0)
        body = restored.body
        tree = dict(json.loads(raw[body.meta_off : body.meta_off + body.meta_len])["tree"]["d"])
        with open(os.path.join(folder, "__%d_0.distcp" % rank), "wb") as file:
            sizes = []
            for (label, node), value in zip(tree["items"]["d"], state["items"].values()):
                if isinstance(value, torch.Tensor):
                    sizes.append(dcp_plan.size_of(value, True))
                else:
                    sizes.append(("value", dcp_plan._weight(node), 0))
            for (offset, length), value in zip(dcp_plan.offsets_of(sizes), state["items"].values()):
                file.write(bytes(offset - file.tell()))
                file.write(_item(value, length))
        if tree["metadata"] is not None:
            at, length = tree["metadata"]["p"]
            with open(os.path.join(folder, ".metadata"), "wb") as file:
                file.write(raw[body.skeleton_off + at : body.skeleton_off + at + length])


def _item(value, length):
    """What torch.save makes of a value, without what no reader needs, and of this length."""
    saved = io.BytesIO()
    torch.save(value.clone() if isinstance(value, torch.Tensor) else value, saved)
    archive = zipfile.ZipFile(saved)
    records = {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}
    kept = [name for name in records if name in ("data.pkl", "byteorder", "version") or name.startswith("data/")]

    def zipped(padding):
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            for name in kept:
                archive.writestr("archive/" + name, records[name] + bytes(padding if name == "data.pkl" else 0))
        return content.getvalue()

    padding = length - len(zipped(0))
    assert padding >= 0, (value, length, padding)
    return zipped(padding)
