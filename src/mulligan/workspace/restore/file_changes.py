"""Changes between two trees for display and JSON, with renames detected."""

from __future__ import annotations

import os

from mulligan.model import FileChange, PathChange
from mulligan.workspace.entries import Directory, File, Link, from_name
from mulligan.workspace.restore.plan import Entry, TreeChange


def file_changes(changes: list[TreeChange]) -> list[FileChange]:
    """Return changes sorted by path; a moved file is one change.

    Times of directories follow from what happens in them and are not listed on their own.
    """
    moved = _renames(changes)
    gone = {old.path for old in moved.values()}
    found = []
    for change in changes:
        if change.path in moved:
            found.append(_file_change(change, "renamed", moved[change.path]))
        elif not (change.after is None and change.path in gone) and not _only_times(change):
            found.append(_file_change(change, _ACTIONS[change.action], None))
    return sorted(found, key=lambda one: one.path)


_ACTIONS: dict[str, PathChange] = {
    "create": "added",
    "delete": "removed",
    "update": "changed",
    "attributes": "attributes",
}


def _renames(changes: list[TreeChange]) -> dict[tuple[str, ...], TreeChange]:
    """Return, for each added file, the removed one with the same content."""
    removed: dict[object, list[TreeChange]] = {}
    for change in changes:
        if change.after is None and (key := _content(change.before)) is not None:
            removed.setdefault(key, []).append(change)
    found = {}
    for change in changes:
        if change.before is None and (candidates := removed.get(_content(change.after))):
            found[change.path] = candidates.pop()
    return found


def _content(entry: Entry | None) -> object:
    if isinstance(entry, File) and entry.chunks:
        return entry.chunks
    return None


def _only_times(change: TreeChange) -> bool:
    before, after = change.before, change.after
    return (
        isinstance(before, Directory)
        and isinstance(after, Directory)
        and before.mode == after.mode
        and before.xattrs == after.xattrs
    )


def _file_change(change: TreeChange, what: PathChange, origin: TreeChange | None) -> FileChange:
    before = origin.before if origin else change.before
    entry = change.after or before
    return FileChange(
        path=change.place,
        change=what,
        kind=_kind(entry),
        old_path=origin.place if origin else None,
        old_mode=_mode(before),
        mode=_mode(change.after),
        old_size=_size(before),
        size=_size(change.after),
        os_path=os.fsdecode(b"/".join(map(from_name, change.path))),
    )


def _kind(entry: Entry | None) -> str:
    if isinstance(entry, File):
        return "file"
    return "symlink" if isinstance(entry, Link) else "directory"


def _mode(entry: Entry | None) -> int | None:
    return entry.mode if isinstance(entry, File | Directory) else None


def _size(entry: Entry | None) -> int | None:
    return entry.size if isinstance(entry, File) else None
