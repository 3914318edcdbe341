"""Checkpoints and their labels. The full record of one is ``Session.record``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.model import Checkpoint
    from mulligan.session import Session
    from mulligan.supervisor.requests import Answer


def checkpoint_view(checkpoint: Checkpoint, verdict: str | None = None) -> dict[str, Any]:
    """Return a checkpoint with the verdict on it."""
    return {
        "checkpoint_id": checkpoint.id,
        "timestamp": checkpoint.time,
        "kind": checkpoint.kind,
        "session": checkpoint.session,
        "seq": checkpoint.seq,
        "parent": checkpoint.parent,
        "label": checkpoint.label,
        "key": checkpoint.key,
        "note": checkpoint.note,
        "data": checkpoint.data,
        "actor": checkpoint.actor,
        "verdict": verdict,
        "cost": {"ms": checkpoint.cost.ms, "bytes": checkpoint.cost.bytes},
        "workspace": checkpoint.workspace and checkpoint.workspace.hex(),
        "files": checkpoint.coverage and checkpoint.coverage.files,
        "left_out": checkpoint.coverage and len(checkpoint.coverage.left_out),
    }


def team_checkpoint_view(checkpoint: Checkpoint, answer: Answer) -> dict[str, Any]:
    """Return a checkpoint of a team: which agents were at a safe point, and which were late."""
    answers = {"answered": list(answer.answered), "late": list(answer.late)}
    return {**checkpoint_view(checkpoint), **answers}


def verdicts(session: Session) -> dict[str, str]:
    """Return the verdicts on a session's checkpoints, by their ids."""
    return {id: mark.verdict for id, mark in session.checkpoints.marks().items()}


def labelled(session: Session) -> dict[str, Checkpoint]:
    """Return the labels of a session with the checkpoints that they name, newest first."""
    return {
        label: session.checkpoints.at(point)
        for label, point in session.checkpoints.labels().items()
    }


def labels_view(session: Session, dropped: str | None = None) -> dict[str, Any]:
    """Return the labels of a session, and the one that was dropped before."""
    labels = [
        {"label": label, "checkpoint_id": named.id, "seq": named.seq, "timestamp": named.time}
        for label, named in labelled(session).items()
    ]
    return {"session": session.name, "labels": labels, "dropped": dropped}


def deleted_view(session: str, checkpoints: Sequence[Checkpoint] | None) -> dict[str, Any]:
    """Return what was deleted: checkpoints of a session, or all of it."""
    return {
        "session": session,
        "deleted": "session" if checkpoints is None else "checkpoints",
        "checkpoints": [checkpoint_view(one) for one in checkpoints or ()],
    }


def pinned_checkpoints(session: Session) -> list[Checkpoint]:
    """Return the checkpoints that are pinned in a session, newest first."""
    found = [session.checkpoints.at(identity) for identity in session.checkpoints.pinned()]
    return sorted(found, key=lambda one: one.seq, reverse=True)


def pinned_view(session: Session) -> dict[str, Any]:
    """Return the pinned checkpoints of a session, with who pinned each and why."""
    pins = session.checkpoints.pinned()
    found = [
        {
            "checkpoint_id": one.id,
            "seq": one.seq,
            "timestamp": one.time,
            "by": pins[one.id].by,
            "note": pins[one.id].note,
        }
        for one in pinned_checkpoints(session)
    ]
    return {"session": session.name, "pinned": found}
