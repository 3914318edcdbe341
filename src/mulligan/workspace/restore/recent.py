"""Find what a restore leaves as it is although a power cut could still change it.

A file that already looks like its entry needs no change, but may never have been synced: a program
wrote it a moment ago, or a restore that was killed did. When a restore returns, all of its files
are durable, not only those that it wrote itself.

Files that last changed before ``Index.settled_until`` are left to the kernel, which writes back
everything within about half a minute. What an earlier restore of this process has synced is not
synced again, in the directories that it knew: one that was moved here since may hold files that
changed before that restore, and that it has not seen. So the cost follows recent changes, not the
size of the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mulligan.workspace.capture.index import NOTHING_SYNCED, STAT, Index, SeenDirectory, Synced
from mulligan.workspace.entries import TreePath, from_name, to_name
from mulligan.workspace.restore.plan import TreeChange

Only = Sequence[TreePath] | None
"""The parts that a restore is limited to; None for the whole tree."""


class Recent(NamedTuple):
    """A directory that changed recently, or in which these leaves did."""

    path: TreePath
    leaves: list[bytes]


def recently_changed(
    index: Index,
    changes: Sequence[TreeChange],
    only: Only = None,
    synced: Synced = NOTHING_SYNCED,
) -> Iterator[Recent]:
    """Yield what changed too recently to be durable for certain, and is not about to be changed.

    ``synced`` is what an earlier restore has made durable.
    """
    # A sync in the future means that the clock was set back: it says nothing about new changes.
    until = synced.until if synced.until <= index.taken else 0
    settled, known = _limit(index.settled_until), _limit(max(index.settled_until, until))
    changed: dict[TreePath, set[bytes]] = {}
    for change in changes:
        if change.path:
            changed.setdefault(change.path[:-1], set()).add(from_name(change.path[-1]))
    for raw, directory in index.directories.items():
        since, first = known if directory.ino in synced.directories else settled
        leaves = _recent_leaves(directory, first)
        # A ctime of 0 means unknown: names in the directory may have changed at any time.
        if not leaves and 0 < directory.ctime < since:
            continue
        path = tuple(map(to_name, raw.split(b"/"))) if raw else ()
        replaced = changed.get(path, ())
        if replaced or only is not None:
            leaves = [n for n in leaves if n not in replaced and _is_part(path, n, only)]
        if leaves or _concerns(path, only):
            yield Recent(path, leaves)


def _limit(since: int) -> tuple[int, bytes]:
    """Return a time, and the packed stat of a file that last changed then."""
    return since, STAT.pack(max(since, 0), 0, 0, 0)


def _recent_leaves(directory: SeenDirectory, first: bytes) -> list[bytes]:
    # Packed stats sort by their ctime, and those that are unsettled come last. Comparing bytes is
    # much faster than unpacking, and there may be a million.
    return [name for name, seen in directory.leaves.items() if seen.stat >= first]


def _is_part(path: TreePath, name: bytes, only: Only) -> bool:
    if only is None:
        return True
    leaf = (*path, to_name(name))
    return any(leaf[: len(part)] == part for part in only)


def _concerns(path: TreePath, only: Only) -> bool:
    """Whether a directory is in a part, or the names of parts may be in it or below it."""
    return only is None or any(path[: len(part)] == part[: len(path)] for part in only)
