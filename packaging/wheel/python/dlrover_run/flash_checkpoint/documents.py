"""The documents of a checkpoint folder: a manifest for each step, and the tracker, which names the step that counts.

<dir>/.dlrover/<step>.json     written when all files of the step are on disk
<dir>/dlrover_latest.txt       the step in decimal, written last
"""

import contextlib
import fcntl
import json
import os
import time
import zlib

FOLDER = ".dlrover"
TRACKER = "dlrover_latest.txt"

VERSION = 1

# Between the name of a file and the id of the process that writes it.
TEMPORARY = ".dlrover-tmp-"

# The last step that every reader of JSON keeps.
LARGEST_STEP = (1 << 53) - 1

_SMALLEST_CHUNK = 64 << 20
_MOST_CHUNKS = 64
_LARGEST_MANIFEST = 64 << 20
_BLOCK = 1 << 20

# Names of temporary files that are tried.
_MOST_NAMES = 16


class Unusable(Exception):
    """A document or a file is not what it must be."""


class Unreadable(Unusable):
    """The file system does not say what is in a file that is there: it may say so later, or to another process."""


def read_tracker(directory):
    """The step that counts, or None without a tracker. Raises Unusable when it names none."""
    try:
        with open(os.path.join(directory, TRACKER), "rb") as file:
            text = file.read(65)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unusable("the tracker cannot be read: %s" % error)
    digits = text.decode("ascii", "replace").strip()
    if len(text) > 64 or not (digits.isascii() and digits.isdigit()) or int(digits) > LARGEST_STEP:
        raise Unusable("the tracker says %r; expected a step in decimal" % digits)
    return int(digits)


def read_manifests(directory):
    """All manifests by step, and why others cannot be used, by step. There are none only if their directory is missing.

    Raises Unreadable when the file system does not say what there is.
    """
    manifests, unusable = {}, {}
    folder = os.path.join(directory, FOLDER)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return manifests, unusable
    except OSError as error:
        raise Unreadable("the directory of manifests cannot be read: %s" % error)
    for name in names:
        step, dot, suffix = name.partition(".")
        if not (step.isascii() and step.isdigit()) or suffix != "json" or int(step) > LARGEST_STEP:
            continue
        try:
            manifests[int(step)] = _read_manifest(os.path.join(folder, name), int(step))
        except Unusable as error:
            unusable[int(step)] = str(error)
    return manifests, unusable


def write_manifest(directory, manifest):
    """Writes a manifest; all its files are on disk."""
    os.makedirs(os.path.join(directory, FOLDER), exist_ok=True)
    text = json.dumps(dict(manifest, time=int(time.time())), separators=(",", ":"))
    write(manifest_path(directory, manifest["step"]), text.encode())


def manifest_path(directory, step):
    """The file of the manifest of a step."""
    return os.path.join(directory, FOLDER, "%d.json" % step)


def write_tracker(directory, step):
    """Makes `step` the one that counts; its manifest is on disk."""
    write(os.path.join(directory, TRACKER), b"%d" % step)


def write(path, content):
    """Writes a file so that its name always has the whole content."""
    with replacing(path) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path):
    """A file to write, which gets the name `path` at the end of the block, on disk: always whole. Removed on errors.

    It is locked: savers, also those of other nodes, remove temporary files that no process has locked.
    """
    temporary, file = _new_temporary(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            # Before the lock goes.
            os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise
    sync(os.path.dirname(path))


def _new_temporary(path):
    for number in range(_MOST_NAMES):
        temporary = temporary_name(path) + ("-%d" % number if number else "")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        # A sweep may have it at this moment, and remove it; or a process of another node has this one's id.
        if lock(descriptor) and _is_at(descriptor, temporary):
            os.ftruncate(descriptor, 0)
            return temporary, os.fdopen(descriptor, "w+b")
        os.close(descriptor)
    raise OSError("%d files beside %s are being written by other processes" % (_MOST_NAMES, path))


def lock(descriptor):
    """Locks a file or directory for as long as it is open. False when another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # A file system without locks: nothing is swept there but what has the id of the process that sweeps.
        pass
    return True


def _is_at(descriptor, path):
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def temporary_name(path):
    """The name of a file or directory while it is written."""
    return "%s%s%d" % (path, TEMPORARY, os.getpid())


def remove(path):
    """Removes a file if it is there."""
    try:
        os.unlink(path)
    except OSError:
        pass


def sync(path):
    """Puts a file or a directory on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        # Some network file systems cannot do it for directories.
        if not os.path.isdir(path):
            raise
    finally:
        os.close(descriptor)


def sum_of(directory, path, written):
    """Size and checksums of the file `written`, as a manifest has them; its name is `path`."""
    size = os.stat(written).st_size
    chunk = _SMALLEST_CHUNK
    while -(-size // chunk) > _MOST_CHUNKS:
        chunk *= 2
    below = os.path.relpath(path, directory)
    return {
        "file": path if below.startswith(os.pardir) else below,
        "bytes": size,
        "chunk_bytes": chunk,
        "crc32": list(_checksums(written, chunk)),
    }


def verify(path, summed, with_content=True):
    """Compares the file `path` with its size and checksums in a manifest. Raises Unusable when they differ."""
    try:
        size = os.stat(path).st_size
        if size != summed["bytes"]:
            raise Unusable(
                "%s has the size %d B; expected %d B: it was truncated or overwritten" % (path, size, summed["bytes"])
            )
        if with_content:
            for index, (found, expected) in enumerate(zip(_checksums(path, summed["chunk_bytes"]), summed["crc32"])):
                if found != expected:
                    at = index * summed["chunk_bytes"]
                    raise Unusable(
                        "%s was changed after it was written: the checksum from byte %d on is %08x; expected %08x"
                        % (path, at, found, expected)
                    )
    except FileNotFoundError as error:
        raise Unusable("cannot read %s: %s" % (path, error))
    except OSError as error:
        raise Unreadable("cannot read %s: %s" % (path, error))


def files_of(manifest):
    """(shard, file with its sum) of all files of a manifest."""
    for shard in manifest["shards"]:
        yield shard["shard"], shard
        for other in shard.get("also") or []:
            yield shard["shard"], other


def _checksums(path, chunk):
    with open(path, "rb", buffering=0) as file:
        found, left = 0, chunk
        while True:
            block = file.read(min(_BLOCK, left))
            if not block:
                break
            found = zlib.crc32(block, found)
            left -= len(block)
            if left == 0:
                yield found & 0xFFFFFFFF
                found, left = 0, chunk
        if left < chunk:
            yield found & 0xFFFFFFFF


def _read_manifest(path, step):
    try:
        with open(path, "rb") as file:
            text = file.read(_LARGEST_MANIFEST + 1)
        if len(text) > _LARGEST_MANIFEST:
            raise Unusable("it has more than %d bytes" % _LARGEST_MANIFEST)
        manifest = json.loads(text.decode())
        _check(manifest, step)
        return manifest
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise Unusable("it cannot be read: %s: %s" % (type(error).__name__, error))


def _check(manifest, step):
    if manifest["version"] != VERSION:
        raise Unusable("its version is %r; this program reads version %d" % (manifest["version"], VERSION))
    if manifest["step"] != step:
        raise Unusable("it is for step %r, but its name says %d" % (manifest["step"], step))
    if manifest["format"] not in ("pt", "dcp", "safetensors") or not manifest["shards"]:
        raise Unusable(
            "its format is %r, with %d shards; expected pt, dcp or safetensors, and at least 1 shard"
            % (manifest["format"], len(manifest["shards"]))
        )
    for shard, summed in files_of(manifest):
        numbers = [shard, summed["bytes"], summed["chunk_bytes"]] + summed["crc32"]
        if not all(type(number) is int and number >= 0 for number in numbers) or type(summed["file"]) is not str:
            raise Unusable("a file of shard %r has an invalid size, checksum or name" % shard)
        if b"\0" in os.fsencode(summed["file"]):
            raise Unusable("the name %r of a file of shard %r has a null character" % (summed["file"], shard))
        if summed["chunk_bytes"] < 1 or -(-summed["bytes"] // summed["chunk_bytes"]) != len(summed["crc32"]):
            raise Unusable("%s has %d checksums for %d bytes" % (summed["file"], len(summed["crc32"]), summed["bytes"]))
