"""Upkeep of stores that only commands use, such as those of hooks: a process in the background."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from mulligan.upkeep.record import is_overdue

if TYPE_CHECKING:
    from mulligan.session import Session

BACKGROUND_NICENESS = 10
BACKGROUND_SECONDS = 600.0
"""How long such a process works at most; the next one goes on."""


def start_upkeep(session: Session, store_path: str) -> None:
    """Start a process that looks after the store, if that is due; it is not waited for."""
    if not is_overdue(session.internal.engine):
        return
    with suppress(OSError):  # the next command tries again
        start_prune(store_path)


def start_prune(store_path: str) -> None:
    """Start a process that prunes a store; it is not waited for."""
    from mulligan.cli.watch import MULLIGAN

    start([*MULLIGAN, "prune", "--background", "--store", store_path])


def start(command: Sequence[str]) -> None:
    """Start a process that outlives this one, and its terminal."""
    import subprocess  # slow to import, and needed every ten minutes at most

    quiet = subprocess.DEVNULL
    subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
