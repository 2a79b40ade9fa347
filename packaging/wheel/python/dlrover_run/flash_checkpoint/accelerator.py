"""Slots as pinned memory, so that copies from a GPU run at the speed of its bus: 54 GB/s from an H200 (tests/hardware).

Nothing here is needed for a copy to be right, and nothing raises.
"""

import sys

from .notices import say_once

# Bytes of one registration at most: drivers refuse those of 512 GiB and more.
_LARGEST_PART = 64 << 30

# For the contexts of all devices.
_PORTABLE = 1


def device_of(tensors):
    """The number of the first GPU that has one of these tensors, or None."""
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized():
            return None
        return next((tensor.device.index for tensor in tensors if tensor.is_cuda), None)
    except Exception:
        return None


def register(mapping, device):
    """Pins the pages of a mapping: tenths of a second for each GiB. False when the driver refuses.

    To be called in a thread that does nothing else with CUDA: an error stays with its thread, and would come up in
    another call.
    """
    try:
        import torch

        # A thread begins with device 0, and would make a context there.
        torch.cuda.set_device(device)
        return pin(mapping, torch.cuda.cudart())
    except Exception as error:
        say_once("pin", "the saver's memory cannot be pinned, so copies from the GPU are slower: %s" % error)
        return False


def pin(mapping, runtime):
    """Registers all of a mapping, or nothing of it. `runtime` is CUDA's."""
    registered = []

    def undo():
        while registered:
            runtime.cudaHostUnregister(registered.pop())

    for start in range(0, mapping.size, _LARGEST_PART):
        address = mapping.address + start
        result = runtime.cudaHostRegister(address, min(_LARGEST_PART, mapping.size - start), _PORTABLE)
        if int(result) != 0:
            undo()
            say_once(
                "pin",
                "%d bytes of the saver's memory cannot be pinned (CUDA error %d), so copies from the GPU are slower; "
                "raise the limit of locked memory (ulimit -l)" % (mapping.size, int(result)),
            )
            return False
        registered.append(address)
    mapping.before_unmap.append(undo)
    return True
