"""The step that all ranks load: parts of different steps do not fit together, and equal ranks must stay equal."""

from . import disk, documents
from .errors import FlashCheckpointError, NothingLoads
from .exchange import OF_LOAD
from .result import LastLoad


def same_for_all(answers):
    """(source, step, path, reason) for each rank: the same, and `alone` when rank 0 must look for what all can load.

    Raises NothingLoads for an answer of source `nothing`, and FlashCheckpointError for `error`.
    """
    for kind, error in (("nothing", NothingLoads), ("error", FlashCheckpointError)):
        reasons = [reason for source, _, _, reason in answers if source == kind]
        if reasons:
            raise error(reasons[0])
    first = answers[0]
    if first[0] in ("memory", "disk", "none") and all(each[:3] == first[:3] for each in answers):
        return [first] * len(answers)
    found = sorted({"%s, step %s" % (source, step) for source, step, _, _ in answers if source != "alone"})
    reason = next((reason for source, _, _, reason in answers if source == "alone"), None)
    if found:
        reason = "the ranks have different steps (%s)" % "; ".join(found)
    return [("alone", None, None, reason or "there is no saver")] * len(answers)


def newest_on_disk(exchange, identity, why, check_format, read=None):
    """(a candidate or None, what `read(path)` returns, LastLoad) for the newest step whose files all ranks find whole.

    Each rank checks a part of them. `check_format(candidate)` raises documents.Unusable for what is no step of the
    format that is wanted. A step that a rank cannot read is passed over by all, too.
    """
    rank, world = identity.rank, identity.world
    folder, found, is_empty, fault = None, [], False, None
    try:
        folder = disk.Folder(identity.dir)
        is_empty = folder.is_empty()
        if rank == 0:
            # With what rank 0 saw: on a file server, another rank may not see a manifest yet.
            found = [(each.step, each.manifest is not None) for each in _candidates(folder, identity)]
    except NothingLoads as error:
        # All ranks must know.
        fault = "rank %d: %s" % (rank, error)
    found, is_empty, fault = exchange.together(
        "candidates", fault, lambda faults: [(found, is_empty, _first_fault(faults)[0])] * len(faults)
    )
    if fault:
        raise NothingLoads(fault)
    if is_empty:
        return None, None, LastLoad("none", None, "%s has no checkpoint" % identity.dir)
    for step, has_manifest in found:
        candidate, state, fault = None, None, None
        try:
            candidate = folder.candidate(step, has_manifest, rank, identity.shard, identity.n_shards)
            check_format(candidate)
            candidate = folder.verify(candidate, lambda shard: shard % world == rank or shard == identity.shard)
            state = read(candidate.path) if read else None
        except documents.Unusable as error:
            fault = str(error)
        except Exception as error:
            # torch.load raises anything for a damaged file.
            fault = "rank %d cannot load it: %s: %s" % (rank, type(error).__name__, error)
        fault = exchange.together("check %d" % step, fault, _first_fault, OF_LOAD)
        if fault is None:
            return candidate, state, LastLoad("disk", step, why)
        if rank == 0:
            folder.pass_over("step %d: %s" % (step, fault))
        else:
            folder.passed.append("step %d: %s" % (step, fault))
    raise folder.nothing_loads()


def _candidates(folder, identity):
    return folder.candidates(identity.rank, identity.shard, identity.n_shards)


def _first_fault(faults):
    return [next(filter(None, faults), None)] * len(faults)
