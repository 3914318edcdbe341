"""Restores, undos and redos: previewed, done, copied elsewhere, and pending."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.document.values import format_path, parse_path
from mulligan.views.diffs import all_differences, difference_views
from mulligan.views.effects import effect_plan_view
from mulligan.views.files import (
    file_change_views,
    left_out_views,
    open_file_views,
    problem_views,
)
from mulligan.views.points import point_view

if TYPE_CHECKING:
    from mulligan.model import EffectPlan, PendingRestore, Plan, Point, Problem, Restored, UndoMode
    from mulligan.session import Session
    from mulligan.timeline.diff import Diff
    from mulligan.timeline.points import PointLike

WORKSPACE = "workspace"

NOT_PREVIEWED: Mapping[str, Any] = {
    "changes": None,
    "files": None,
    "left_alone": None,
    "conflicts": None,
    "caches": None,
    "builds": None,
    "open_files": None,
    "effects": None,
    "pending": None,
}
"""The fields of a preview where there was none."""


class Preview(msgspec.Struct, frozen=True):
    """What a restore, an undo or a redo would do to state and files.

    ``directory`` is where the files are, ``parts`` the parts that were named, ``pending`` the view
    of a restore that was interrupted before. ``effects`` are those after the point, None where
    they are not affected.
    """

    state: Diff
    files: Plan
    directory: Path | None
    parts: tuple[str, ...] | None
    pending: dict[str, Any] | None = None
    effects: EffectPlan | None = None

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.state.state or self.state.conversation or self.files)


def preview_restore(
    session: Session, point: PointLike, only: tuple[str, ...] | None, directory: Path | None
) -> Preview:
    """Work out what a restore would do.

    Raises as ``Session.plan_copy`` does when files are asked for and the point has none.
    """
    found = session.point(point)
    session.internal.refuse_damaged(found, only)
    if any(is_workspace(part) for part in only or ()) and session.internal.files_at(found) is None:
        session.internal.plan_copy(found)  # its error says that there are no files, and what to do
    state = session.diff(session.head, found, only)
    effects = session.effects.plan(found) if only is None and session.internal.has_acts else None
    plan = session.files.plan(found, only)
    return Preview(state, plan, directory, only, pending_view(session), effects)


def preview_undo(session: Session, mode: UndoMode, directory: Path | None) -> Preview:
    """Work out what an undo or a redo would do."""
    found = session.internal.preview(mode)
    parts = parts_view(found.only, found.workspace)
    named = None if parts is None else tuple(parts)
    acts = parts is None and session.internal.has_acts
    effects = session.effects.plan(found.state.after) if acts else None
    return Preview(found.state, found.files, directory, named, pending_view(session), effects)


def preview_view(preview: Preview) -> dict[str, Any]:
    """Return what would change, in the fields that every restore has."""
    files = preview.files
    return {
        "changes": difference_views(all_differences(preview.state)),
        "files": file_change_views(files.files),
        "left_alone": left_out_views(files.left_alone),
        "purged": left_out_views(files.purged),
        "conflicts": list(files.conflicts),
        "caches": list(files.caches),
        "builds": list(files.builds),
        "open_files": open_file_views(files.open_files),
        "effects": preview.effects and effect_plan_view(preview.effects),
        "pending": preview.pending,
    }


def restored_view(
    done: Restored, directory: Path | None, preview: Mapping[str, Any] = NOT_PREVIEWED
) -> dict[str, Any]:
    """Return what was done; ``preview`` are the fields of what was seen before."""
    return {
        "applied": True,
        "mode": done.mode,
        "to": point_view(done.point),
        "only": parts_view(done.only, done.workspace),
        "safety": done.safety.id,
        "seq": done.seq,
        "directory": directory and str(directory),
        "restored_files": done.files,
        "problems": problem_views(done.problems),
        **preview,
        "purged": left_out_views(done.purged),
    }


def unapplied_view(preview: Preview, mode: str = "restore") -> dict[str, Any]:
    """Return a restore, an undo or a redo that was only previewed."""
    point, problems = preview.state.after, preview.files.problems
    base = _unapplied(mode, point, preview.parts, preview.directory, problems)
    return {**base, **preview_view(preview)}


def abandoned_view(pending: PendingRestore, view: dict[str, Any] | None) -> dict[str, Any]:
    """Return a pending restore that was ended where it stood; ``view`` is what it was before."""
    base = _unapplied(pending.mode, pending.point, None, Path(pending.directory))
    return {**base, **NOT_PREVIEWED, "pending": view}


def copy_view(
    plan: Plan,
    only: Sequence[str] | None,
    directory: Path,
    problems: Sequence[Problem] | None,
) -> dict[str, Any]:
    """Return a copy of files into another directory; ``problems`` is None for a dry run."""
    base = _unapplied("copy", plan.point, only, directory, problems or ())
    return {
        **base,
        "applied": problems is not None,
        "restored_files": 0 if problems is None else max(0, len(plan.files) - len(problems)),
        **{name: [] for name in NOT_PREVIEWED},
        "files": file_change_views(plan.files),
        "effects": None,
        "pending": None,
    }


def pending_view(session: Session) -> dict[str, Any] | None:
    """Return the pending restore of files; None if there is none."""
    pending = session.files.pending
    if pending is None:
        return None
    return {
        "mode": pending.mode,
        "to": point_view(pending.point),
        "directory": pending.directory,
        "safety": session.checkpoints.at(pending.seq).id,
        "is_running": pending.is_running,
    }


def parts_view(only: Any, workspace: Sequence[str] | None) -> list[str] | None:
    """Return the parts of state and workspace as texts; None for everything.

    ``workspace`` are the paths of files, None for all of them.
    """
    if only is None:
        return None
    files = [WORKSPACE] if workspace is None else [f"{WORKSPACE}/{path}" for path in workspace]
    return [format_path(parse_path(path)) for path in only] + files


def is_workspace(part: str) -> bool:
    """Whether a part names files."""
    return part.split("/")[0] == WORKSPACE


def _unapplied(
    mode: str,
    point: Point,
    only: Sequence[str] | None,
    directory: Path | None,
    problems: Sequence[Problem] = (),
) -> dict[str, Any]:
    return {
        "applied": False,
        "mode": mode,
        "to": point_view(point),
        "only": None if only is None else list(only),
        "safety": None,
        "seq": None,
        "directory": directory and str(directory),
        "restored_files": 0,
        "purged": [],
        "problems": problem_views(problems),
    }
