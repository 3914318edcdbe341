"""Waiting for a grace period, and the process that it waits for."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mulligan.engine import Engine
from mulligan.journal.lock_owner import REPORT_AFTER_SECONDS, LockOwner, find_flock_owner
from mulligan.layout import LOCKS
from mulligan.pins import NAME

if TYPE_CHECKING:
    from mulligan.upkeep.slices import Stop

POLL_SECONDS = (0.01, 0.5)
"""How long to wait between looks at a grace period: at first, and at most."""

PINNED = "using objects of the store"


def wait_grace_period(engine: Engine, stop: Stop, patience: float | None = None) -> None:
    """Start a grace period and wait for its end; the caller must not be pinned.

    Raises ``Stopped`` also after ``patience`` seconds, if that is given.
    """
    from mulligan.upkeep.slices import Stopped, check  # a look at the store needs none of it

    period = engine.pins.start_grace_period()
    pause, longest = POLL_SECONDS
    started = engine.clock.monotonic()
    end = math.inf if patience is None else started + patience
    report_at = started + REPORT_AFTER_SECONDS
    # Polled with backoff: waiting for the locks would block new operations behind this one.
    while not period.is_over():
        check(stop)
        if engine.clock.monotonic() >= end:
            raise Stopped
        if engine.directory is not None and engine.clock.monotonic() >= report_at:
            held = held_back_by(engine.directory)
            engine.on_wait(held[0] if held else None)
            report_at = math.inf
        engine.clock.sleep(pause)
        pause = min(2 * pause, longest)


def held_back_by(directory: Path) -> tuple[LockOwner, float] | None:
    """Return the process that a grace period of a store waits for, and the time since when."""
    for file in (directory / LOCKS).glob(f"{NAME}-*"):
        with suppress(OSError):  # the wait for it has ended
            handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                # A file is renamed when its grace period starts.
                owner, since = find_flock_owner(handle, PINNED), os.fstat(handle).st_ctime
            finally:
                os.close(handle)
            if owner is not None:
                return owner, since
    return None
