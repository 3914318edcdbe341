"""Pending restores: what ``restore.begun`` holds, and which directory a restore belongs to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mulligan.document.document import MISSING, Document
from mulligan.document.fold import PENDING, RESTORE_BEGUN, Change
from mulligan.engine import Engine
from mulligan.model import Digest, PendingRestore, Point, RestoreOrigin
from mulligan.workspace.entries import from_name, to_name


def is_pending_in(pending: PendingRestore, directory: Path) -> bool:
    """Whether a restore is finished in a directory: its own by any path, or where that moved to."""
    root = Path(pending.directory)
    with suppress(OSError):
        return root == directory or root.samefile(directory)
    return not root.exists()


def pending_restore_change(pending: PendingRestore) -> Change:
    """Return the event that records a restore before its first file is touched."""
    payload: dict[str, Any] = {
        "mode": pending.mode,
        "session": pending.point.session,
        "seq": pending.point.seq,
        "only": plain_paths(pending.only),
        "tree": pending.tree,
        "paths": plain_paths(pending.paths),
        "held": pending.held,
        "before": pending.origin.tree,
        "safety": pending.origin.safety,
        "present": pending.present,
        "root": to_name(os.fsencode(pending.directory)),
        **({"touch": True} if pending.touch else {}),
    }
    if pending.restored is not None:
        payload["restored"] = pending.restored
    return RESTORE_BEGUN, payload


def read_pending_restore(engine: Engine, document: Document) -> PendingRestore | None:
    """Return the restore that is pending in a document, if there is one."""
    found = document.find(PENDING)
    if found is MISSING:
        return None
    payload: dict[str, Any] = engine.plain(found)
    before = Digest(payload["before"])
    return PendingRestore(
        mode=payload["mode"],
        point=Point(payload["session"], payload["seq"]),
        directory=os.fsdecode(from_name(payload["root"])),
        origin=RestoreOrigin(before, payload["safety"]),
        tree=Digest(payload["tree"]),
        present=Digest(payload.get("present", before)),
        only=_paths(payload["only"]),
        paths=_paths(payload["paths"]),
        held=payload["held"],
        restored=payload.get("restored"),
        touch=payload.get("touch", False),
    )


def plain_paths(paths: Sequence[Sequence[Any]] | None) -> list[list[Any]] | None:
    """Return paths as an event holds them."""
    return None if paths is None else [list(path) for path in paths]


def _paths(plain: Any) -> list[Any] | None:
    return None if plain is None else [tuple(path) for path in plain]
