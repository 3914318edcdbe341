"""Find what a restore leaves as it is although a power cut could still change it.

A file that already looks like its entry needs no change, but may never have been synced: a program
wrote it a moment ago, or a restore that was killed did. When a restore returns, all of its files
are durable, not only those that it wrote itself.

Files that last changed before ``Index.settled_until`` are left to the kernel, which writes back
everything within about half a minute. So the cost follows recent changes, not the size of the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mulligan.workspace.capture.index import STAT, Index, SeenDirectory
from mulligan.workspace.entries import TreePath, from_name, to_name
from mulligan.workspace.restore.plan import TreeChange

Only = Sequence[TreePath] | None
"""The parts that a restore is limited to; None for the whole tree."""


class Recent(NamedTuple):
    """A directory that changed recently, or in which these leaves did."""

    path: TreePath
    leaves: list[bytes]


def recently_changed(
    index: Index, changes: Sequence[TreeChange], only: Only = None
) -> Iterator[Recent]:
    """Yield what changed too recently to be durable for certain, and is not about to be changed."""
    since = index.settled_until
    changed: dict[TreePath, set[bytes]] = {}
    for change in changes:
        if change.path:
            changed.setdefault(change.path[:-1], set()).add(from_name(change.path[-1]))
    for raw, directory in index.directories.items():
        leaves = _recent_leaves(directory, since)
        # A ctime of 0 means unknown: names in the directory may have changed at any time.
        if not leaves and 0 < directory.ctime < since:
            continue
        path = tuple(map(to_name, raw.split(b"/"))) if raw else ()
        replaced = changed.get(path, ())
        leaves = [name for name in leaves if name not in replaced and _is_part(path, name, only)]
        if leaves or _concerns(path, only):
            yield Recent(path, leaves)


def _recent_leaves(directory: SeenDirectory, since: int) -> list[bytes]:
    # Packed stats sort by their ctime, and those that are unsettled come last. Comparing bytes is
    # much faster than unpacking, and there may be a million.
    first = STAT.pack(since, 0, 0, 0)
    return [name for name, seen in directory.leaves.items() if seen.stat >= first]


def _is_part(path: TreePath, name: bytes, only: Only) -> bool:
    if only is None:
        return True
    leaf = (*path, to_name(name))
    return any(leaf[: len(part)] == part for part in only)


def _concerns(path: TreePath, only: Only) -> bool:
    """Whether a directory is in a part, or the names of parts may be in it or below it."""
    return only is None or any(path[: len(part)] == part[: len(path)] for part in only)
