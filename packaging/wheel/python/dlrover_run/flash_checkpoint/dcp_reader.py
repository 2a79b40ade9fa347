"""Reads what this rank has in memory as if it were a directory of torch.distributed.checkpoint."""

import io

import torch
from torch.distributed.checkpoint.planner import LoadItemType
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from .errors import FlashCheckpointError


class MemoryReader(StorageReader):
    """A reader for the ranks and the sharding that saved: each finds its own parts. `state` is that of its slot."""

    def __init__(self, state, step):
        super().__init__()
        self.step = step
        local, parts = state["extra"]["local"], dict(state["items"], **state["extra"]["rest"])
        self._metadata = local["metadata"]
        self._parts = {place: parts[label] for label, place in local["places"].items()}

    def read_metadata(self, *args, **kwargs):
        """What this rank has. Ranks have the same names, each with its own shards."""
        return self._metadata

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        pass

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        return plans

    def read_data(self, plan, planner):
        """Copies parts into the tensors of the plan."""
        for item in plan.items:
            index = item.storage_index
            place = (index.fqn, None if index.offset is None else tuple(index.offset))
            if place not in self._parts:
                raise FlashCheckpointError(
                    "this rank has no part of %s at offset %s in memory: the model is sharded differently than when "
                    "it was saved; load from disk with resume_path" % place
                )
            part = self._parts[place]
            if item.type == LoadItemType.BYTE_IO:
                content = io.BytesIO()
                torch.save(part, content)
                content.seek(0)
                planner.load_bytes(item, content)
                continue
            for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths)):
                part = part.narrow(dimension, start, length)
            target = planner.resolve_tensor(item).detach()
            if target.size() != part.size():
                raise FlashCheckpointError(
                    "%s has the shape %s, and was saved with %s; load from disk with resume_path"
                    % (index.fqn, tuple(target.size()), tuple(part.size()))
                )
            target.copy_(part)
            planner.commit_tensor(item, target)
        done = Future()
        done.set_result(None)
        return done

    def reset(self, checkpoint_id=None):
        pass

    @property
    def checkpoint_id(self):
        """For log lines of torch."""
        return "memory"

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return False
