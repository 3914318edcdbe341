"""Restores as events: which change restores a state, and which restore undo and redo reverse."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mulligan.document import nodes
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import RESTORED, STATE, Change
from mulligan.document.values import format_path
from mulligan.errors import NothingToUndo, PathNotFound

if TYPE_CHECKING:
    from mulligan.model import Event, Path, Point


def restore_change(
    now: Document,
    target: Document,
    point: Point,
    only: Sequence[Path] | None,
    mode: str,
    files: dict[str, Any] | None = None,
    *,
    strict: bool = False,
    also: Sequence[list[Any]] = (),
    facts: Mapping[str, Any] | None = None,
) -> Change:
    """Return the change that restores the target's state, or the named parts of it.

    ``files`` says what was done to the workspace: the trees before and after, and which paths.
    With ``strict`` a part that is neither there now nor at the target is a ``PathNotFound``.
    ``also`` are changes of the state that follow, ``facts`` what else the event says.
    """
    changes = [*_changes(now, target, only, strict=strict), *also]
    payload: dict[str, Any] = {
        "mode": mode,
        "session": point.session,
        "seq": point.seq,
        "only": None if only is None else nodes.build_list(_touched(now, changes)),
        "changes": nodes.build_list(changes),
        **(facts or {}),
    }
    if files is not None:
        payload["files"] = files
    return RESTORED, payload


def _changes(
    now: Document, target: Document, only: Sequence[Path] | None, *, strict: bool
) -> list[list[Any]]:
    """Return what is to be set and deleted; with ``strict`` a part must be on one side."""
    if only is None:
        return [[[], target.find(STATE)]]
    for path in only:
        if strict and _entry(now, target, path) is None:
            raise nothing_at(path)
    paths = outermost([_well_defined(now, target, path) for path in only])
    return [entry for path in paths if (entry := _entry(now, target, path)) is not None]


def _touched(now: Document, changes: list[list[Any]]) -> list[list[str | int]]:
    """Return the paths that an undo looks at, including parents that the changes create."""
    touched = []
    for path, *_ in changes:
        known = (n for n in range(len(path)) if now.find((*STATE, *path[:n])) is MISSING)
        touched.append(path[: next(known, len(path))])
    return touched


def last_undoable(document: Document, mode: str) -> int:
    """Return the seq of the restore that ``undo`` or ``redo`` would reverse."""
    seq = document.find((mode, -1))
    if seq is MISSING:
        raise NothingToUndo(f"There is no restore to {mode}.")
    return int(seq)


def first_restore(events: Iterable[Event]) -> Event | None:
    """Return the first restore among events; a checkpoint before it holds what it replaced."""
    return next((event for event in events if event.kind == RESTORED), None)


def restores(events: Iterable[Event]) -> list[Event]:
    """Return the restores, undos and redos among events."""
    return [event for event in events if event.kind == RESTORED]


def outermost(paths: Sequence[Path]) -> list[Path]:
    """Return the paths without those that lie inside another one."""
    # Shorter first, so that each path comes after all that could contain it.
    ordered = sorted(set(paths), key=lambda path: (len(path), format_path(path)))
    kept: list[Path] = []
    for path in ordered:
        if not any(path[: len(other)] == other for other in kept):
            kept.append(path)
    return kept


def nothing_at(path: Path) -> PathNotFound:
    """Return the error for a part that neither of two states has."""
    return PathNotFound(
        f"There is nothing at {format_path(path)!r}, neither now nor at the point.",
        hint="Name a component such as memory, a path such as agents/coder, a file, or "
        "workspace for all files.",
    )


def _entry(now: Document, target: Document, path: Path) -> list[Any] | None:
    """Return the path with its value at the target, or alone if it is deleted."""
    wanted, present = target.find((*STATE, *path)), now.find((*STATE, *path))
    if wanted is not MISSING:
        return [list(path), wanted]
    if present is not MISSING:
        return [list(path)]
    return None


def _well_defined(now: Document, target: Document, path: Path) -> Path:
    """Return the path, or the part of it that has to be restored as a whole.

    If something else is in the way now, or a list does not have the item on both sides, only the
    whole value can be restored.
    """
    for length in range(len(path)):
        holder = now.find((*STATE, *path[:length]))
        if holder is MISSING:
            # It will be made, in the form that it has at the target.
            holder = target.find((*STATE, *path[:length]))
            if holder is MISSING:
                return path
        node = now.resolved(holder)
        if nodes.is_map(node):
            continue
        step = (*STATE, *path[: length + 1])
        both = now.find(step) is not MISSING and target.find(step) is not MISSING
        if not (nodes.is_list(node) and both):
            return path[:length]
    return path
