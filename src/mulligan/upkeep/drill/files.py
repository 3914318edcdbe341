"""The files of a drill: written from the store alone, then read back and compared."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from mulligan.codec import digest
from mulligan.document.document import Document, gc_paused
from mulligan.engine import Engine
from mulligan.errors import DiskFull, MulliganError
from mulligan.model import Digest, ObjectKind, Problem
from mulligan.workspace.capture.ignore import is_of_store
from mulligan.workspace.capture.patch import open_tree
from mulligan.workspace.checkout.checkout import Checkout
from mulligan.workspace.checkout.checkout_plan import CheckoutPlan
from mulligan.workspace.entries import Directory, File, Leaf, Link, TreePath, from_name, shown
from mulligan.workspace.handles import Handles
from mulligan.workspace.restore.fileops import reason
from mulligan.workspace.restore.plan import tree_changes
from mulligan.workspace.restore.purged import purged_chunks, purged_paths

FILE = "file"
"""What a problem with a path is called."""

Expected = tuple[TreePath, Leaf | Directory]
"""A path that a tree has, and what is there."""

_BLOCK = 4096
_ENTRY_BYTES = 512
"""What a name and its attributes take of a filesystem, roughly."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def expected_paths(engine: Engine, tree: Digest) -> list[Expected]:
    """Return everything that a checkout of a tree makes, parents first."""
    changes = tree_changes(Document({}, engine.load), None, tree)
    purged = purged_paths(engine, changes)
    return [
        (change.path, change.after)
        for change in changes
        if change.after is not None
        and change.place not in purged
        and not any(is_of_store(from_name(name)) for name in change.path)
    ]


def check_space(expected: Sequence[Expected], place: Path) -> None:
    """Raise ``DiskFull`` unless the files fit into the filesystem of a directory."""
    needed = sum(map(_size_on_disk, expected))
    status = os.statvfs(place)
    free = status.f_bavail * status.f_frsize
    if needed > free:
        raise DiskFull(
            f"The drill needs {needed:,} bytes in {place}, where {free:,} are free.",
            hint="Nothing was written. Free some space, or name another directory: --scratch DIR.",
        )


def write_files(engine: Engine, tree: Digest, target: Path) -> list[Problem]:
    """Write a tree into a new directory, and return the paths that could not be written.

    Every byte comes from the store: unlike a fork, nothing is shared with the workspace.
    """
    plan = CheckoutPlan()
    with gc_paused():
        plan.add_tree(open_tree(Document({}, engine.load), tree))
    # Not a failure: its content was removed on purpose.
    plan.drop_purged(purged_chunks(engine, plan.chunks))
    target.mkdir(mode=0o700)
    failures = Checkout(os.fsencode(target), plan, engine.objects, engine.failpoint).run()
    return [Problem(FILE, shown(path), why) for path, why in failures]


def compare_files(engine: Engine, expected: Sequence[Expected], target: Path) -> Iterator[Problem]:
    """Yield the paths that are not on disk as the tree says: content, mode, symlink target."""
    handles = Handles(os.fsencode(target))
    try:
        for path, entry in expected:
            try:
                difference = _difference(engine, handles, path, entry)
            except (OSError, MulliganError) as error:
                difference = reason(error)
            if difference is not None:
                yield Problem(FILE, shown(path), difference)
    finally:
        handles.close()


def _size_on_disk(expected: Expected) -> int:
    _, entry = expected
    size = entry.size if isinstance(entry, File) else 0
    return -(-size // _BLOCK) * _BLOCK + _ENTRY_BYTES


def _difference(
    engine: Engine, handles: Handles, path: TreePath, entry: Leaf | Directory
) -> str | None:
    """Return how a path differs from its entry; None if it does not."""
    if isinstance(entry, Directory):
        return _other_mode(os.fstat(handles.directory(path)), entry.mode)
    parent, name = handles.directory(path[:-1]), from_name(path[-1])
    if isinstance(entry, Link):
        target = os.readlink(name, dir_fd=parent)
        return None if target == entry.target else "it points elsewhere"
    handle = os.open(name, _READ, dir_fd=parent)
    try:
        return _other_file(engine, handle, entry)
    finally:
        os.close(handle)


def _other_file(engine: Engine, handle: int, entry: File) -> str | None:
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if status.st_size != entry.size:
        return f"it has {status.st_size:,} bytes instead of {entry.size:,}"
    if (mode := _other_mode(status, entry.mode)) is not None:
        return mode
    if hasattr(os, "posix_fadvise"):
        # The file is synced: without its pages in the cache, the bytes come from the disk.
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    return None if _has_content(engine, handle, entry) else "its content differs"


def _has_content(engine: Engine, handle: int, entry: File) -> bool:
    with open(handle, "rb", closefd=False) as file:
        if len(entry.chunks) == 1:
            return digest(ObjectKind.CHUNK, file.read()) == entry.chunks[0]
        for chunk in entry.chunks:
            # The entry does not record where its chunks end; their lengths do.
            length = len(engine.objects.get(ObjectKind.CHUNK, chunk))
            if digest(ObjectKind.CHUNK, file.read(length)) != chunk:
                return False
        return not file.read(1)


def _other_mode(status: os.stat_result, mode: int) -> str | None:
    found = stat.S_IMODE(status.st_mode)
    return None if found == mode else f"its mode is {found:o} instead of {mode:o}"
