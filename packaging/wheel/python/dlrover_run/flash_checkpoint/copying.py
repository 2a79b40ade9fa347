"""Copies tensors into a slot. The only part of a save that takes long."""

import contextlib
import os
import threading

import torch

from . import streaming
from .errors import FlashCheckpointError

# Threads at most, and bytes from which on more than one is worth it.
_MOST_THREADS = 4
_LEAST_BYTES = 32 << 20

_copy_many = getattr(torch, "_foreach_copy_", None)


def _outside_of_inference():
    # Since torch 1.9.
    mode = getattr(torch, "inference_mode", None)
    return mode(False) if mode else contextlib.nullcontext()


def targets_of(layout, array):
    """Tensors over the bytes of a slot, one for each copy of `layout`, in order."""
    # Those that are made in inference mode cannot be written outside of it, as by a helper or the next save.
    with _outside_of_inference():
        whole = torch.frombuffer(array, dtype=torch.uint8)
        whole = whole[: whole.numel() // 64 * 64]
        typed = {}
        targets = []
        for copy in layout.copies:
            if copy.dtype not in typed:
                typed[copy.dtype] = whole.view(copy.dtype)
            view = typed[copy.dtype]
            first = (layout.data_off + copy.offset) // view.element_size()
            targets.append(view[first : first + copy.count].view(copy.shape))
        return targets


def copy_all(layout, tensors, targets):
    """Copies `tensors` of this layout to `targets` and returns when all bytes are there."""
    if 0 in [tensor.data_ptr() for tensor in tensors]:
        _refuse_without_memory(tensors)
    with torch.no_grad():
        sources = [tensors[index] for index in layout.copied]
        for place in layout.flat:
            copy = layout.copies[place]
            # Memory in its order, also of a view with other strides.
            first = sources[place].storage_offset() + copy.first
            sources[place] = sources[place].as_strided((copy.count,), (1,), first)
        if all([source.is_cpu for source in sources]):
            _copy_here(layout.copy_bytes, sources, targets)
        else:
            _copy_mixed(layout.copy_bytes, sources, targets)


def _refuse_without_memory(tensors):
    for tensor in tensors:
        if tensor.numel() and not tensor.data_ptr():
            raise FlashCheckpointError(
                "a tensor of shape %s has no memory, so it cannot be saved; gather it first: FSDP frees parameters "
                "between uses" % (tuple(tensor.shape),)
            )


def _copy_mixed(sizes, sources, targets):
    here = [source.is_cpu for source in sources]
    # Accelerators first: their copies run while the processor copies.
    elsewhere = [(source, target) for source, target, is_here in zip(sources, targets, here) if not is_here]
    for source, target in elsewhere:
        target.copy_(source, non_blocking=source.is_cuda)
    _copy_here(
        *([each for each, is_here in zip(all_of_them, here) if is_here] for all_of_them in (sizes, sources, targets))
    )
    for device in {source.device for source, _ in elsewhere if source.is_cuda}:
        torch.cuda.current_stream(device).synchronize()


def _copy_here(sizes, sources, targets):
    """Copies with several threads, each in one call: other Python threads cannot delay it in between."""
    threads = _threads(sum(sizes))
    if threads == 1:
        return _copy(targets, sources)
    parts, errors = _parts(sizes, threads), []

    def copy(part):
        try:
            # Gradients are a matter of each thread.
            with torch.no_grad():
                _copy(targets[part], sources[part])
        except BaseException as error:
            errors.append(error)

    helpers = []
    try:
        for part in parts[1:]:
            helper = threading.Thread(target=copy, args=(part,), name="flash-checkpoint-copy")
            try:
                helper.start()
            except RuntimeError:
                # A container has a limit of threads, and a handler of `atexit` may start none.
                copy(part)
            else:
                helpers.append(helper)
        copy(parts[0])
    finally:
        for helper in helpers:
            helper.join()
    if errors:
        raise errors[0]


def _parts(sizes, count):
    """Slices of about the same bytes, in the order of the slot."""
    whole, parts, first, filled = sum(sizes), [], 0, 0
    for index, size in enumerate(sizes):
        filled += size
        if filled >= whole * (len(parts) + 1) / count:
            parts.append(slice(first, index + 1))
            first = index + 1
    if first < len(sizes):
        parts.append(slice(first, len(sizes)))
    return parts


def _copy(targets, sources):
    targets, sources = streaming.copy(targets, sources)
    if _copy_many is not None and targets:
        _copy_many(targets, sources)
    else:
        for target, source in zip(targets, sources):
            target.copy_(source)


def _threads(size):
    # With threads of its own, torch uses them already: torchrun and dlrover-run leave one to each worker.
    if size < _LEAST_BYTES or torch.get_num_threads() > 1:
        return 1
    try:
        processors = len(os.sched_getaffinity(0))
        workers = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    except (AttributeError, OSError, ValueError):
        return 1
    return max(1, min(_MOST_THREADS, processors // workers))
