"""What ``verify`` looked at and found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mulligan.views.files import problem_views

if TYPE_CHECKING:
    from mulligan.model import Report

COUNTED = ("session", "event", "checkpoint", "keyframe", "object", "pack")


def report_view(report: Report) -> dict[str, Any]:
    """Return a report: how much was checked, and what is broken."""
    return {
        "ok": report.ok,
        "full": report.full,
        **{f"{noun}s": getattr(report, f"{noun}s") for noun in COUNTED},
        "unreferenced_bytes": report.unreferenced_bytes,
        "problems": problem_views(report.problems),
        "warnings": problem_views(report.warnings),
    }
