"""What is recorded of the last upkeep, for ``mulligan status`` and for the other processes."""

from __future__ import annotations

import errno
import os
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from mulligan.decoding import ready
from mulligan.engine import Engine
from mulligan.failpoints import Failpoint
from mulligan.layout import FORMAT

INTERVAL_SECONDS = 600.0
"""Upkeep runs at most this often, whichever process does it."""

NEW_STORE_SECONDS = 3600.0
"""A store that is younger than this needs no upkeep by commands."""

RECORD = "upkeep"

_FULL = (errno.ENOSPC, errno.EDQUOT)


class UpkeepRecord(msgspec.Struct, frozen=True):
    """The last upkeep of a store, in ``tmp/upkeep``: a cache, which may be deleted."""

    at: datetime
    removed: int = 0
    size_before: int = 0
    size_after: int = 0
    stopped: bool = False
    over_quota: int = 0
    error: str | None = None


def read_record(engine: Engine) -> UpkeepRecord | None:
    """Return what is recorded of the last upkeep; None if nothing readable is."""
    if engine.directory is None:
        return None
    try:
        return msgspec.json.decode(_file(engine.directory).read_bytes(), type=ready(UpkeepRecord))
    except (OSError, msgspec.DecodeError):
        return None  # a cache: without it, upkeep runs sooner


def write_record(engine: Engine, record: UpkeepRecord) -> None:
    """Record an upkeep for ``mulligan status`` and for the other processes.

    On a full disk it is left out: it is a cache, and what the upkeep did is done.
    """
    if engine.directory is None:
        return
    try:
        replace_file(engine, _file(engine.directory), msgspec.json.encode(record))
    except OSError as error:
        if error.errno not in _FULL:
            raise


def replace_file(engine: Engine, file: Path, data: bytes) -> None:
    """Replace a file in ``tmp/``: readers see the old content or the new one."""
    made = file.with_name(f"{file.name}-{os.getpid()}")
    try:
        made.write_bytes(data)
        engine.failpoint(Failpoint.UPKEEP_RECORD_WRITTEN)
        # Renamed, so that no reader sees half of it; not synced, because it is a cache.
        os.replace(made, file)
    except OSError:
        made.unlink(missing_ok=True)
        raise


def next_due(engine: Engine) -> datetime | None:
    """Return when upkeep runs next at the earliest; None if it is due."""
    record = read_record(engine)
    if record is None:
        return None
    now, due = engine.clock.now(), record.at + timedelta(seconds=INTERVAL_SECONDS)
    # A record from the future was written under a clock that was wrong: it counts for nothing.
    return due if record.at <= now < due else None


def is_overdue(engine: Engine) -> bool:
    """Whether no process looks after the store by itself, so that a command should start one."""
    if engine.directory is None or engine.read_only:
        return False
    if read_record(engine) is not None:
        return next_due(engine) is None
    # Most stores are tried out at first, and have nothing to remove.
    age = engine.clock.wall_ns() / 1e9 - os.stat(engine.directory / FORMAT).st_mtime
    return age >= NEW_STORE_SECONDS


def _file(directory: Path) -> Path:
    return directory / "tmp" / RECORD
