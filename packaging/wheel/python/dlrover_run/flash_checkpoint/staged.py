"""Files that take the place of others: they wait as <name>.dlrover-staged-<step> until their step counts.

A step is written in this order, so that at every moment either the step before or this one loads:

1. all files of all ranks, on disk; those whose name is taken, by the file of the step before perhaps, are staged
2. the manifest, which has the final names, with the sizes and checksums of the new files
3. the tracker
4. staged files get their names; a load does it for a writer that was killed before

The saver reads and writes the same names (saver/src/child/staged.rs).
"""

import errno
import os
import re

from . import documents

# Behind the final name, before the step.
_MARK = ".dlrover-staged-"


def name_of(path, step):
    """Where the file `path` of a step waits for its name."""
    return "%s%s%d" % (path, _MARK, step)


def place_for(directory, path, step):
    """Where the file `path` of a step is to be written. Raises OSError when a directory has its name.

    When this is the name itself, nothing waits for it: what a killed writer of the same step has left would take the
    place of the new file.
    """
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not os.path.lexists(path):
        try:
            if os.path.exists(documents.manifest_path(directory, step)):
                # It may count: it keeps its content until the new one does.
                os.replace(name_of(path, step), path)
            else:
                os.unlink(name_of(path, step))
        except FileNotFoundError:
            pass
    return name_of(path, step) if os.path.lexists(path) else path


def check_sizes(directory, manifest):
    """Raises documents.Unusable unless all files of a manifest are there, staged or not, with their sizes."""
    for _, summed in documents.files_of(manifest):
        try:
            _verified(directory, summed, manifest["step"], False)
        except documents.Unusable as error:
            raise documents.Unusable(
                "not all files of the step are there: %s; a checkpoint directory must be on a file system that all "
                "nodes share" % error
            )


def publish(directory, manifest):
    """Gives staged files of a step that counts their names. Those of older steps for the same names go.

    Of staged files that are not of this manifest, none gets its name. Their sizes are compared, and not their content:
    this process would read the files of all ranks again.
    """
    for folder, files in _by_folder(directory, manifest).items():
        is_changed = False
        for path, summed in files.items():
            try:
                documents.verify(name_of(path, manifest["step"]), summed, with_content=False)
                os.replace(name_of(path, manifest["step"]), path)
                is_changed = True
            except documents.Unreadable:
                raise
            except (documents.Unusable, FileNotFoundError):
                # It has its name: from the beginning, or a load was faster.
                pass
        if is_changed:
            documents.sync(folder)
        _remove_others(directory, folder, files, manifest["step"])


def remove(directory, manifest):
    """Removes the staged files of a step."""
    for _, summed in documents.files_of(manifest):
        documents.remove(name_of(os.path.join(directory, summed["file"]), manifest["step"]))


def find(directory, summed, step, with_content=True):
    """Where a file of a manifest is: it is compared with its size, and its checksums if `with_content`.

    One that is staged gets its name when its content is right; in a directory that this process may not write, it
    stays where it is. Raises documents.Unusable.
    """
    path, found = os.path.join(directory, summed["file"]), _verified(directory, summed, step, with_content)
    if found == path or not with_content:
        # The size alone does not say that it is of this manifest: the same step may be written anew.
        return path
    try:
        os.replace(found, path)
        documents.sync(os.path.dirname(path))
    except FileNotFoundError:
        # Another process was faster.
        pass
    except OSError:
        return found
    return path


def _verified(directory, summed, step, with_content):
    path = os.path.join(directory, summed["file"])
    staged = name_of(path, step)
    # First: another process may rename it meanwhile.
    if os.path.lexists(staged):
        try:
            documents.verify(staged, summed, with_content)
            return staged
        except documents.Unusable:
            # It waits for another manifest.
            pass
    documents.verify(path, summed, with_content)
    return path


def _remove_others(directory, folder, files, step):
    """Removes what waits for these names of a folder, but for newer steps that have a manifest."""
    names = {os.path.basename(path) for path in files}
    for name in os.listdir(folder):
        found = re.fullmatch("(.+)%s([0-9]+)" % re.escape(_MARK), name)
        if not found or found.group(1) not in names:
            continue
        other = int(found.group(2))
        if other < step or not os.path.exists(documents.manifest_path(directory, other)):
            documents.remove(os.path.join(folder, name))


def _by_folder(directory, manifest):
    folders = {}
    for _, summed in documents.files_of(manifest):
        path = os.path.join(directory, summed["file"])
        folders.setdefault(os.path.dirname(path), {})[path] = summed
    return folders
