"""Failpoints: the named places on every write path where a process may die.

Each write step calls ``failpoint(Failpoint.X)`` with the hook it was given. In production the hook
is :func:`ignore`; tests pass one that kills the process or raises an error there. A new write step
without a crash test is therefore visible in this list.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Failpoint(StrEnum):
    """Where a writer can be killed, in the order of one write."""

    STORE_DIRECTORY_MADE = "store-directory-made"
    STORE_JOURNAL_MADE = "store-journal-made"
    STORE_FORMAT_WRITTEN = "store-format-written"
    PROJECT_WRITTEN = "project-written"
    OUTSIDE_STORE_RENAMED = "outside-store-renamed"
    POINTER_WRITTEN = "pointer-written"
    POINTER_IN_PLACE = "pointer-in-place"
    MOVE_COPIED = "move-copied"
    MOVE_ANNOUNCED = "move-announced"
    MOVE_DONE = "move-done"
    MOVE_OLD_REMOVED = "move-old-removed"
    PACK_CREATED = "pack-created"
    PACK_FRAME_HALF_WRITTEN = "pack-frame-half-written"
    PACK_FRAME_WRITTEN = "pack-frame-written"
    PACK_SYNCED = "pack-synced"
    PACK_TAIL_CUT = "pack-tail-cut"
    RESTORE_MARKED = "restore-marked"
    RESTORE_DRAFT_WRITTEN = "restore-draft-written"
    RESTORE_SWAPPED = "restore-swapped"
    RESTORE_RENAMED = "restore-renamed"
    RESTORE_WRITTEN = "restore-written"
    RESTORE_CACHES_REMOVED = "restore-caches-removed"
    RESTORE_DELETED = "restore-deleted"
    FORK_NOTED = "fork-noted"
    FORK_DIRECTORY_MADE = "fork-directory-made"
    FORK_WRITTEN = "fork-written"
    JOURNAL_BEGUN = "journal-begun"
    JOURNAL_INDEXED = "journal-indexed"
    JOURNAL_APPENDED = "journal-appended"
    JOURNAL_BEFORE_COMMIT = "journal-before-commit"
    JOURNAL_COMMITTED = "journal-committed"
    FORK_MOVED = "fork-moved"
    FORK_PLACED = "fork-placed"


FailpointHook = Callable[[Failpoint], None]


def ignore(point: Failpoint) -> None:
    """Do nothing: the hook of every real store."""
