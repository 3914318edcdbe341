"""Stores with the hooks that tests need: a clock and failpoints."""

from __future__ import annotations

import os
from collections.abc import Iterable

from mulligan import opener
from mulligan.clock import Clock
from mulligan.failpoints import FailpointHook, ignore
from mulligan.journal.lock_owner import OnWait
from mulligan.store import Store


def open_store(
    path: str | os.PathLike[str],
    create: bool = True,
    *,
    clock: Clock | None = None,
    failpoint: FailpointHook = ignore,
    read_only: bool = False,
    salvage: bool = False,
    keep_env: Iterable[str] = (),
    on_wait: OnWait | None = None,
    upkeep: bool = False,
) -> Store:
    """Open a store as ``mulligan.open`` does, with another clock or with failpoints.

    ``failpoint`` is called with every failpoint that is passed; see ``mulligan.failpoints``.
    Without ``upkeep``, no thread takes part in it, whatever the clock says.
    """
    return opener.open_store(
        path,
        os.environ,
        create,
        keep_env,
        clock,
        failpoint,
        on_wait,
        read_only=read_only,
        salvage=salvage,
        upkeep=upkeep,
    )
