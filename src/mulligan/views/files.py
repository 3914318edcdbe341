"""Files: what differs, what is left out, what programs use, what went wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.model import FileChange, LeftOut, OpenFile, Problem


def file_change_view(change: FileChange) -> dict[str, Any]:
    """Return one path that differs."""
    return {
        "path": change.path,
        "change": change.change,
        "kind": change.kind,
        "old_path": change.old_path,
        "old_mode": octal(change.old_mode),
        "mode": octal(change.mode),
        "old_size": change.old_size,
        "size": change.size,
    }


def file_change_views(changes: Iterable[FileChange]) -> list[dict[str, Any]]:
    """Return the paths that differ."""
    return [file_change_view(change) for change in changes]


def left_out_views(found: Iterable[LeftOut]) -> list[dict[str, Any]]:
    """Return paths that no checkpoint holds, each with the rule that leaves it out."""
    return [{"path": left.path, "rule": left.rule} for left in found]


def problem_view(found: Problem) -> dict[str, Any]:
    """Return one problem: something damaged, or something that could not be restored."""
    return {"what": found.what, "where": found.where, "detail": found.detail}


def problem_views(found: Iterable[Problem]) -> list[dict[str, Any]]:
    """Return what is broken, or could not be restored."""
    return [problem_view(problem) for problem in found]


def open_file_views(found: Iterable[OpenFile]) -> list[dict[str, Any]]:
    """Return the paths that programs use."""
    return [{"pid": f.pid, "command": f.command, "path": f.path, "mode": f.mode} for f in found]


def octal(mode: int | None) -> str | None:
    """Return permission bits as people write them."""
    return None if mode is None else f"{mode:03o}"
