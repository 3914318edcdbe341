"""Pending restores: what ``restore.begun`` holds, and which directory a restore belongs to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mulligan.document.document import MISSING, Document
from mulligan.document.fold import PENDING, RESTORE_BEGUN, RESTORED, Change
from mulligan.model import Digest, PendingRestore, Point, RestoreOrigin

if TYPE_CHECKING:  # they import all that captures and restores
    from mulligan.engine import Engine
    from mulligan.session.write.restore_target import Target
    from mulligan.workspace.entries import TreePath
    from mulligan.workspace.restore.plan import TreeChange
    from mulligan.workspace.workspace import Workspace


def is_pending_in(pending: PendingRestore, directory: Path) -> bool:
    """Whether a restore is finished in a directory: its own by any path, or where that moved to."""
    root = Path(pending.directory)
    # By identity where both exist: a bind mount or a symlink gives one directory two paths.
    with suppress(OSError):
        return root == directory or root.samefile(directory)
    return not root.exists()


def new_pending_restore(
    target: Target, mode: str, before: RestoreOrigin, workspace: Workspace, present: Digest
) -> PendingRestore:
    """Return the record of a restore that is about to touch files."""
    held, is_checkpoint = target.held, target.held is not None and target.held.checkpoint
    return PendingRestore(
        mode=mode,
        point=Point(target.point.session, target.point.seq),
        only=target.only,
        tree=target.files,
        paths=target.paths,
        held=held.seq if held and is_checkpoint else None,
        restored=held.seq if held and not is_checkpoint else None,
        origin=before,
        directory=str(workspace.root),
        present=present,
        touch=target.touch,
    )


def pending_restore_change(pending: PendingRestore) -> Change:
    """Return the event that records a restore before its first file is touched."""
    from mulligan.workspace.entries import to_name

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
    from mulligan.workspace.entries import from_name

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


def abandoned_change(pending: PendingRestore, changes: list[TreeChange]) -> Change:
    """Return the event that ends a restore as it is; it changes no state."""
    files = {
        "before": pending.origin.tree,
        "only": touched_paths(pending.paths, changes),
        "safety": pending.origin.safety,
    }
    return RESTORED, {
        "mode": pending.mode,
        "session": pending.point.session,
        "seq": pending.point.seq,
        "only": [],
        "changes": [],
        "files": files,
        "abandoned": True,
    }


def touched_paths(
    paths: Sequence[TreePath] | None, changes: Sequence[TreeChange]
) -> list[list[str]] | None:
    """Return the paths that an undo looks at; created parent directories are included."""
    if paths is None:
        return None
    from mulligan.workspace.entries import Directory

    made = {c.path for c in changes if c.before is None and isinstance(c.after, Directory)}
    lengths = [range(1, len(path) + 1) for path in paths]
    return [
        list(next((path[:n] for n in numbers if path[:n] in made), path))
        for path, numbers in zip(paths, lengths, strict=True)
    ]


def plain_paths(paths: Sequence[Sequence[Any]] | None) -> list[list[Any]] | None:
    """Return paths as an event holds them."""
    return None if paths is None else [list(path) for path in paths]


def _paths(plain: Any) -> list[Any] | None:
    return None if plain is None else [tuple(path) for path in plain]
