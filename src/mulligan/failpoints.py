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

    # Creating a store, its project and its pointer.
    STORE_DIRECTORY_MADE = "store-directory-made"
    STORE_JOURNAL_MADE = "store-journal-made"
    STORE_FORMAT_WRITTEN = "store-format-written"
    PROJECT_WRITTEN = "project-written"
    OUTSIDE_STORE_RENAMED = "outside-store-renamed"
    POINTER_WRITTEN = "pointer-written"
    POINTER_IN_PLACE = "pointer-in-place"
    # Moving a store: up to MOVE_ANNOUNCED the old one is valid, from MOVE_DONE on the new one.
    MOVE_COPIED = "move-copied"
    MOVE_ANNOUNCED = "move-announced"
    MOVE_DONE = "move-done"
    MOVE_OLD_REMOVED = "move-old-removed"
    # Objects, which become durable before the journal refers to them.
    PACK_CREATED = "pack-created"
    PACK_FRAME_HALF_WRITTEN = "pack-frame-half-written"
    PACK_FRAME_WRITTEN = "pack-frame-written"
    PACK_SYNCED = "pack-synced"
    PACK_TAIL_CUT = "pack-tail-cut"
    # Files of a restore, between its two events.
    RESTORE_MARKED = "restore-marked"
    RESTORE_TEMPORARY_WRITTEN = "restore-temporary-written"
    RESTORE_SWAPPED = "restore-swapped"
    RESTORE_RENAMED = "restore-renamed"
    RESTORE_WRITTEN = "restore-written"
    RESTORE_CACHES_REMOVED = "restore-caches-removed"
    RESTORE_DELETED = "restore-deleted"
    # The directory of a fork; it is moved into place after the commit below.
    FORK_NOTED = "fork-noted"
    FORK_DIRECTORY_MADE = "fork-directory-made"
    FORK_WRITTEN = "fork-written"
    # The transaction. Up to JOURNAL_BEFORE_COMMIT, nothing of it may remain after a crash.
    JOURNAL_TRANSACTION_STARTED = "journal-transaction-started"
    DAMAGE_NOTED = "damage-noted"
    JOURNAL_INDEXED = "journal-indexed"
    JOURNAL_APPENDED = "journal-appended"
    JOURNAL_BEFORE_COMMIT = "journal-before-commit"
    JOURNAL_COMMITTED = "journal-committed"
    # Steps and effects: each is after the transaction, or the act, that it names.
    STEP_RAN = "step-ran"
    STEP_RECORDED = "step-recorded"
    EFFECT_ASKED = "effect-asked"
    EFFECT_ANSWERED = "effect-answered"
    EFFECT_INTENDED = "effect-intended"
    EFFECT_ACTED = "effect-acted"
    EFFECT_RECORDED = "effect-recorded"
    COMPENSATION_NOTED = "compensation-noted"
    COMPENSATION_RAN = "compensation-ran"
    COMPENSATION_RECORDED = "compensation-recorded"
    TOOL_CALLED = "tool-called"
    TOOL_RETURNED = "tool-returned"
    # The settings file of a coding agent.
    SETTINGS_NOTED = "settings-noted"
    SETTINGS_BACKED_UP = "settings-backed-up"
    SETTINGS_WRITTEN = "settings-written"
    # The client of the resident helper.
    CLIENT_STAGED = "client-staged"
    CLIENT_REPLACED = "client-replaced"
    CLIENT_NOTED = "client-noted"
    # Deleting. DELETE_WRITTEN and DELETE_CUT are before the commits of a session and of a slice.
    DELETE_WRITTEN = "delete-written"
    DELETE_COMMITTED = "delete-committed"
    DELETE_CUT = "delete-cut"
    DELETE_CUT_COMMITTED = "delete-cut-committed"
    DELETE_VACATED = "delete-vacated"
    DELETE_ERASED = "delete-erased"
    # The first upkeep of a store that an earlier version made.
    UPKEEP_FEATURE_WRITTEN = "upkeep-feature-written"
    UPKEEP_FEATURE_LISTED = "upkeep-feature-listed"
    # Pruning: PRUNE_REMOVED is before the commit of a slice.
    PRUNE_REMOVED = "prune-removed"
    PRUNE_COMMITTED = "prune-committed"
    UPKEEP_RECORD_WRITTEN = "upkeep-record-written"
    # Folding. Each slice is a transaction as above; FOLD_WRITTEN is before its commit.
    FOLD_PREPARED = "fold-prepared"
    FOLD_WRITTEN = "fold-written"
    FOLD_COMMITTED = "fold-committed"
    # Garbage collection.
    GC_STARTED = "gc-started"
    GC_CONDEMNED = "gc-condemned"
    GC_GRACE_OVER = "gc-grace-over"
    GC_SWEPT = "gc-swept"
    FREE_AREA_FORGOTTEN = "free-area-forgotten"
    FREE_PACK_UNLINKED = "free-pack-unlinked"
    FREE_EXTENTS_FREED = "free-extents-freed"
    FREE_COPIED = "free-copied"
    FREE_RELOCATED = "free-relocated"
    COMPACT_COPIED = "compact-copied"
    COMPACT_LOCKED = "compact-locked"
    COMPACT_SWAPPED = "compact-swapped"
    COMPACT_REOPENED = "compact-reopened"
    # Purging. Nothing is replaced before PURGE_BURIED, where its one transaction has committed.
    PURGE_ANNOUNCED = "purge-announced"
    PURGE_WRITTEN = "purge-written"
    PURGE_BURIED = "purge-buried"
    PURGE_VACATED = "purge-vacated"
    PURGE_ERASED = "purge-erased"
    PURGE_CACHES_REMOVED = "purge-caches-removed"
    PURGE_FINISHED = "purge-finished"
    FORK_MOVED = "fork-moved"
    FORK_PLACED = "fork-placed"
    # Repair: everything is still as it was up to REPAIR_LOCKED, but for what was kept aside.
    REPAIR_ASIDE_KEPT = "repair-aside-kept"
    REPAIR_FORMAT_WRITTEN = "repair-format-written"
    REPAIR_HEADER_WRITTEN = "repair-header-written"
    REPAIR_PACK_WRITTEN = "repair-pack-written"
    REPAIR_JOURNAL_WRITTEN = "repair-journal-written"
    REPAIR_LOCKED = "repair-locked"
    REPAIR_SWAPPED = "repair-swapped"
    REPAIR_HEALED = "repair-healed"
    REPAIR_MARKED = "repair-marked"
    # Rewinding a coding agent. Its new transcript can be resumed from REWIND_PUBLISHED on; files
    # come last.
    REWIND_FORKED = "rewind-forked"
    REWIND_DRAFT_WRITTEN = "rewind-draft-written"
    REWIND_RECORDED = "rewind-recorded"
    REWIND_PUBLISHED = "rewind-published"
    REWIND_NOTED = "rewind-noted"
    DRILL_NOTED = "drill-noted"
    DRILL_DIRECTORY_MADE = "drill-directory-made"
    DRILL_WRITTEN = "drill-written"
    DRILL_REMOVED = "drill-removed"


FailpointHook = Callable[[Failpoint], None]


def ignore(point: Failpoint) -> None:
    """Do nothing: the hook of every real store."""
