"""Errors of the store as a whole, and of stored bytes that are not what was written."""

from __future__ import annotations

from mulligan.errors.base import MulliganError


class StoreError(MulliganError):
    """The store as a whole cannot be used as requested."""


class StoreNotFound(StoreError):
    """There is no store at the path."""

    exit_code = 10
    default_hint = "Run `mulligan init` in the directory you work in, or pass --store."


class NotAStore(StoreError):
    """The path exists and is something other than a store."""

    exit_code = 11
    default_hint = "Nothing was changed there. Choose another path, or an empty directory."


class UnknownFormat(StoreError):
    """The store was written in a format that this version does not know."""

    exit_code = 12
    default_hint = "Nothing was changed. Upgrade Mulligan, then try again."


class StoreOpenedTwice(StoreError):
    """The journal is already open in this process through something other than Mulligan."""

    exit_code = 13
    default_hint = "Use one handle per process: share the Store, or close the other one first."


class ReadOnlyStore(StoreError):
    """A write to a store that cannot be written."""

    exit_code = 14
    default_hint = "Reading still works. Make the directory writable, or copy the store elsewhere."


class DiskFull(StoreError):
    """The disk has no space left."""

    exit_code = 15
    retryable = True
    default_hint = "Everything acknowledged before is safe. Free some space, then try again."


class StoreClosed(StoreError):
    """The store handle was closed."""

    exit_code = 16
    default_hint = "Open the store again with mulligan.open()."


class InvalidConfig(StoreError):
    """The store's configuration is invalid."""

    exit_code = 17
    default_hint = "Nothing was changed. Fix or delete the file; without it, defaults apply."


class StoreUnwritable(StoreError):
    """The operating system refused to write a file of the store."""

    exit_code = 18
    retryable = True
    default_hint = "Everything acknowledged before is safe. Fix what the message names, then retry."


class StoreGone(StoreError):
    """The store was removed, moved or replaced while it was open."""

    exit_code = 19
    default_hint = (
        "What was written before is gone with it; nothing more is written. Put the store back from "
        "a copy, or create a new one with `mulligan init`, then start again."
    )


class MemoryLimit(StoreError):
    """A limit on this process's memory leaves too little to open the journal."""

    exit_code = 25
    default_hint = "Nothing was changed. Raise the limit (`ulimit -v`), then try again."


class StoreInUse(StoreError):
    """Other processes have the store open."""

    exit_code = 24
    retryable = True
    default_hint = "Nothing was changed. End the agents and programs that use it, then try again."


class UpkeepBusy(StoreError):
    """Another process prunes, collects, purges or repairs the store."""

    exit_code = 26
    retryable = True
    default_hint = "Nothing was changed. Try again when the other process is done."


class QuotaExceeded(StoreError):
    """The store is larger than its quota, although all that may be removed was."""

    exit_code = 29
    default_hint = (
        "Checkpoints hold no files until there is room. Raise the quota, or unpin, drop labels and "
        "clear checkpoints: `mulligan prune --dry-run` says what keeps each."
    )


class PurgeRefused(StoreError):
    """A purge that cannot be done as requested, or that was not confirmed."""

    exit_code = 122
    default_hint = "Nothing was changed."


class PurgeUnfinished(StoreError):
    """What was purged is out of reach, but bytes of it may be left in files of the store."""

    exit_code = 123
    default_hint = (
        "Nothing can read it through Mulligan any more. End what the message names, then run "
        "`mulligan purge --finish`."
    )


class DamageError(MulliganError):
    """Stored bytes differ from what was written."""


class DamagedObject(DamageError):
    """An object's bytes do not match its digest."""

    exit_code = 60
    default_hint = "Nothing wrong was returned. `mulligan verify --full` lists all damage."


class MissingObject(DamageError):
    """An object that is referred to is not in the store."""

    exit_code = 61
    default_hint = "`mulligan verify --full` lists all damage; other sessions may be unaffected."


class DamagedPack(DamageError):
    """A pack file differs from what the index says."""

    exit_code = 62
    default_hint = "Objects in other packs are safe. `mulligan verify --full` lists all damage."


class DamagedJournal(DamageError):
    """A journal record does not match its hash chain."""

    exit_code = 63
    table: str | None = None
    """The table of the damaged record, if it is known."""
    default_hint = "Nothing wrong was returned. `mulligan verify` says where the chain breaks."


class PurgedContent(DamageError):
    """Content that a purge removed from all history; the message says when, by whom and why."""

    exit_code = 65
    default_hint = "Everything else of the point is there. `mulligan show` names what is not."
