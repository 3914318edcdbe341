"""Find programs that use files which a restore would replace or delete.

Such a program would continue with the old file, which no longer has a name: its writes would be
lost silently.
"""

from __future__ import annotations

from collections.abc import Collection

from mulligan.model import OpenFile
from mulligan.procfs import CWD, open_files
from mulligan.workspace.entries import Directory, from_name
from mulligan.workspace.restore.plan import TreeChange


def in_use(root: bytes, changes: list[TreeChange], ignore: Collection[int] = ()) -> list[OpenFile]:
    """Return the files that changes replace or delete while a program writes to them.

    Also the directories to be deleted that are a program's working directory. ``ignore`` are
    process IDs to skip; this process is always skipped.
    """
    files = {_raw(s): s.place for s in changes if _replaces_leaf(s)}
    directories = {_raw(s): s.place for s in changes if _deletes_directory(s)}
    if not files and not directories:
        return []
    start = root.rstrip(b"/") + b"/"
    found = []
    for one in open_files(root, ignore):
        known = directories if one.mode == CWD else files
        place = known.get(one.path.removeprefix(start))
        if place is not None:
            found.append(OpenFile(one.pid, one.command, place, one.mode))
    return sorted(found)


def _raw(change: TreeChange) -> bytes:
    return b"/".join(map(from_name, change.path))


def _replaces_leaf(change: TreeChange) -> bool:
    has_leaf = change.before is not None and not isinstance(change.before, Directory)
    return has_leaf and change.action in ("update", "delete")


def _deletes_directory(change: TreeChange) -> bool:
    return isinstance(change.before, Directory) and change.after is None
