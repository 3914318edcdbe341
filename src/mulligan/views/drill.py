"""Drills: how one went, and the last one of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mulligan.upkeep.drill.record import last_drill
from mulligan.views.files import problem_views

if TYPE_CHECKING:
    from mulligan.session import Session
    from mulligan.upkeep.drill.record import CommandRun, DrillResult, Loss


def drill_view(result: DrillResult) -> dict[str, Any]:
    """Return how a drill went."""
    return {
        "ok": result.ok,
        "session": result.session,
        "seq": result.seq,
        "checkpoint_id": result.checkpoint,
        "at": result.at,
        "files": result.files,
        "file_bytes": result.file_bytes,
        "events": result.events,
        "keyframes": result.keyframes,
        "commands": [_command_view(made) for made in result.commands],
        "recovery_seconds": result.recovery_seconds,
        "seconds": result.seconds,
        "loss": _loss_view(result.loss),
        "problem_count": result.problem_count,
        "problems": problem_views(result.problems),
        "leftover": result.leftover,
    }


def last_drill_view(session: Session) -> dict[str, Any] | None:
    """Return the last drill of a session; None if there was none."""
    last = last_drill(session)
    return None if last is None else drill_view(last)


def _command_view(made: CommandRun) -> dict[str, Any]:
    return {
        "agent": made.agent,
        "kind": made.kind,
        "exit_status": made.exit_status,
        "seconds": made.seconds,
    }


def _loss_view(loss: Loss) -> dict[str, Any]:
    return {
        "checkpoint_id": loss.checkpoint,
        "age_seconds": loss.age_seconds,
        "events": loss.events,
        "paths": loss.paths,
    }
