"""Repairs: what was found and done, what is lost, and what checkpoints lost before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mulligan.views.verify import report_view

if TYPE_CHECKING:
    from mulligan.repair.store import Repaired
    from mulligan.session import Session
    from mulligan.timeline.losses import Loss


def repair_view(
    repaired: Repaired | None, discarded: int | None, *, dry_run: bool
) -> dict[str, Any]:
    """Return what a repair found, did, and could not bring back; and what was discarded."""
    if repaired is None:
        return {"discarded_bytes": discarded}
    return {
        "ok": repaired.ok,
        "dry_run": dry_run,
        "steps": [
            {"what": step.what, "found": step.found, "done": step.done} for step in repaired.steps
        ],
        "healed": list(repaired.healed),
        "lost_events": list(repaired.lost_events),
        "may_be_lost": list(repaired.may_be_lost),
        "damaged": [
            {
                "checkpoint_id": one.id,
                "session": one.session,
                "seq": one.seq,
                "label": one.label,
                **loss_view(one.loss),
            }
            for one in repaired.damaged
        ],
        "lost_state": repaired.current,
        "originals": list(repaired.originals),
        "verify": repaired.report and report_view(repaired.report),
        "discarded_bytes": discarded,
    }


def loss_view(loss: Loss) -> dict[str, Any]:
    """Return what a checkpoint lost."""
    return {
        "lost_files": loss.files,
        "lost_file_count": loss.file_count,
        "lost_state": loss.state,
        "lost_state_count": loss.state_count,
        "lost_events": loss.events and list(loss.events),
        "lost_record": loss.record,
        "nearest_intact": loss.nearest,
    }


def damaged_views(session: Session) -> list[dict[str, Any]]:
    """Return the checkpoints of a session's timeline that lost something, oldest first."""
    return [
        {"seq": seq, **loss_view(loss)} for seq, loss in sorted(session.internal.losses().items())
    ]
