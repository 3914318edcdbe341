"""What ``verify`` looked at and found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mulligan.upkeep.verify.record import newest_verify
from mulligan.views.files import problem_view, problem_views

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mulligan.model import Finding, Report
    from mulligan.session import Session
    from mulligan.store import Store

COUNTED = ("session", "event", "checkpoint", "keyframe", "object", "pack")


def report_view(report: Report, *, recorded: bool = False) -> dict[str, Any]:
    """Return a report: how much was checked, what is broken, and whether it is on the timeline."""
    return {
        "ok": report.ok,
        "full": report.full,
        **{f"{noun}s": getattr(report, f"{noun}s") for noun in COUNTED},
        "sample": report.sample,
        "seed": report.seed,
        "stored_bytes": report.stored_bytes,
        "read_bytes": report.read_bytes,
        "unreferenced_bytes": report.unreferenced_bytes,
        "recorded": recorded,
        "problems": [finding_view(found) for found in report.problems],
        "warnings": [finding_view(found) for found in report.warnings],
    }


def last_verify_view(store: Store, known: Iterable[Session]) -> dict[str, Any] | None:
    """Return the last check of a store that one of its sessions recorded; None if none did."""
    last = newest_verify(store, known)
    if last is None:
        return None
    return {
        "ok": last.ok,
        "at": last.at,
        "full": last.full,
        "sample": last.sample,
        "seconds": last.seconds,
        "stored_bytes": last.stored_bytes,
        "read_bytes": last.read_bytes,
        "problem_count": last.problem_count,
        "problems": problem_views(last.problems),
    }


def finding_view(found: Finding) -> dict[str, Any]:
    """Return one finding: in words, and what of the store it is about."""
    place = found.location
    return {
        **problem_view(found),
        "fault": found.fault,
        "table": found.table,
        "seq": found.seq,
        "digest": None if found.digest is None else found.digest.hex(),
        "pack": found.area,
        "offset": None if place is None else place.offset,
        "length": None if place is None else place.length,
    }
