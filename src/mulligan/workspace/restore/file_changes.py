"""Changes between two trees for display and JSON, with renames detected."""

from __future__ import annotations

import os

from mulligan.model import FileChange, PathChange
from mulligan.workspace.entries import Directory, File, Link, from_name
from mulligan.workspace.restore.plan import Entry, TreeChange


def file_changes(steps: list[TreeChange]) -> list[FileChange]:
    """Return changes sorted by path; a moved file is one change.

    Times of directories follow from what happens in them and are not listed on their own.
    """
    moved = _renames(steps)
    gone = {old.path for old in moved.values()}
    changes = []
    for step in steps:
        if step.path in moved:
            changes.append(_change(step, "renamed", moved[step.path]))
        elif not (step.after is None and step.path in gone) and not _only_times(step):
            changes.append(_change(step, _ACTIONS[step.action], None))
    return sorted(changes, key=lambda change: change.path)


_ACTIONS: dict[str, PathChange] = {
    "create": "added",
    "delete": "removed",
    "update": "changed",
    "attributes": "attributes",
}


def _renames(steps: list[TreeChange]) -> dict[tuple[str, ...], TreeChange]:
    """Return, for each added file, the removed one with the same content."""
    removed: dict[object, list[TreeChange]] = {}
    for step in steps:
        if step.after is None and (key := _content(step.before)) is not None:
            removed.setdefault(key, []).append(step)
    found = {}
    for step in steps:
        if step.before is None and (candidates := removed.get(_content(step.after))):
            found[step.path] = candidates.pop()
    return found


def _content(entry: Entry | None) -> object:
    if isinstance(entry, File) and entry.chunks:
        return entry.chunks
    return None


def _only_times(step: TreeChange) -> bool:
    before, after = step.before, step.after
    return (
        isinstance(before, Directory)
        and isinstance(after, Directory)
        and before.mode == after.mode
        and before.xattrs == after.xattrs
    )


def _change(step: TreeChange, change: PathChange, origin: TreeChange | None) -> FileChange:
    before = origin.before if origin else step.before
    entry = step.after or before
    return FileChange(
        path=step.place,
        change=change,
        kind=_kind(entry),
        old_path=origin.place if origin else None,
        old_mode=_mode(before),
        mode=_mode(step.after),
        old_size=_size(before),
        size=_size(step.after),
        os_path=os.fsdecode(b"/".join(map(from_name, step.path))),
    )


def _kind(entry: Entry | None) -> str:
    if isinstance(entry, File):
        return "file"
    return "symlink" if isinstance(entry, Link) else "directory"


def _mode(entry: Entry | None) -> int | None:
    return entry.mode if isinstance(entry, File | Directory) else None


def _size(entry: Entry | None) -> int | None:
    return entry.size if isinstance(entry, File) else None
