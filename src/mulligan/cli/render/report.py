"""The report of a verification, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mulligan.cli.render.text import plural

if TYPE_CHECKING:
    from mulligan import Report

COUNTED = ("session", "event", "checkpoint", "keyframe", "object", "pack")


def summary(report: Report) -> str:
    """Return what was checked, in one line."""
    return ", ".join(plural(getattr(report, f"{noun}s"), noun) for noun in COUNTED)
