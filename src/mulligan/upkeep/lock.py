"""One process at a time looks after a store, and only if all others take part by their pins."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from mulligan import layout, procfs
from mulligan.engine import Engine
from mulligan.errors import ReadOnlyStore, StoreInUse, UpkeepBusy
from mulligan.journal.lock_owner import find_flock_owner
from mulligan.layout import LOCKS, PINS
from mulligan.owner import open_as_owner

NAME = "upkeep"
UPKEEP = "looking after the store"
VERIFY = "verify"
"""The lock of checks in the background, which may run beside upkeep."""

EARLIER = (
    "Nothing was changed. Try again when no other process has the store open; from then on, "
    "earlier versions refuse it."
)


@contextmanager
def upkeep_lock(engine: Engine, wait: bool, name: str = NAME) -> Iterator[None]:
    """Hold the store's upkeep lock; raises ``UpkeepBusy`` if another process has it.

    A process that prunes, folds, collects, frees, purges or repairs holds it. With ``wait``, wait
    for it. Raises ``StoreInUse`` if a process of an earlier version may have the store open.
    """
    if engine.directory is None:  # in memory: no other process can have it
        yield
        return
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    # A check changes nothing, so it opens the store for reading.
    if engine.read_only and name == NAME:
        raise ReadOnlyStore(f"The store at {engine.directory} was opened for reading.")
    handle = open_as_owner(engine.directory / LOCKS / name, flags)
    try:
        # Before the feature is looked at: two processes that list it at the same time would
        # overwrite each other's FORMAT.
        _lock(engine, handle, wait)
        if name == NAME:
            require_pins(engine)
        yield
    finally:
        # Explicitly: a process forked meanwhile may still have the file open.
        fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _lock(engine: Engine, handle: int, wait: bool) -> None:
    try:
        # Tried without waiting first: only then is it known whether there is an owner to name.
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = find_flock_owner(handle, UPKEEP)
        # Background work does not wait: the process that has the lock does the same work.
        if not wait:
            who = f"Process {owner.pid} ({owner.command})" if owner else "Another process"
            stopped = ", and is stopped" if owner and owner.is_stopped else ""
            raise UpkeepBusy(f"{who} is {UPKEEP}{stopped}.") from error
        engine.on_wait(owner)
        # After the report: from here on this process waits, for however long that takes.
        fcntl.flock(handle, fcntl.LOCK_EX)


def require_pins(engine: Engine) -> None:
    """Make sure that every process takes pins, once for each store; raises ``StoreInUse``.

    A process of an earlier version takes none, so its objects could be removed under it. It refuses
    a store with the feature, and could only have opened this one before the feature was listed.
    """
    directory = engine.directory
    if directory is None or PINS in layout.read_format(directory).features:
        return
    _refuse_others(engine)
    layout.add_feature(directory, PINS, engine.failpoint)
    try:
        # Again: one may have read FORMAT just before it changed.
        _refuse_others(engine)
    except StoreInUse:
        layout.drop_feature(directory, PINS)
        raise


def _refuse_others(engine: Engine) -> None:
    if (pid := engine.journal.other_user()) is not None:
        raise StoreInUse(
            f"Process {pid} ({procfs.command(pid)}) has the store open. It may be of an earlier "
            "version, under which nothing can be removed safely.",
            hint=EARLIER,
        )
