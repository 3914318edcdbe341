"""Teams of agents: how a session was left, and how a pause ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.session import Session
    from mulligan.supervisor.requests import Answer
    from mulligan.supervisor.run import RunOutcome

AGENT_FIELDS = ("state", "restarts", "exit_status", "signal", "resources", "last_action")


def run_view(session: Session, outcome: RunOutcome) -> dict[str, Any]:
    """Return how and why a session was left, with the agents of its team."""
    return {
        "session": outcome.session,
        "status": outcome.status,
        "reason": outcome.reason,
        "quarantined": list(outcome.quarantined),
        "agents": [_agent_view(session, name) for name in outcome.workflow.agents],
    }


def _agent_view(session: Session, name: str) -> dict[str, Any]:
    known = session.state.get(("agents", name), {})
    return {"name": name, **{field: known.get(field) for field in AGENT_FIELDS}}


def pause_view(session: Session, answer: Answer) -> dict[str, Any]:
    """Return how a pause ended: who was at a safe point, who was late, and the checkpoint."""
    return {
        "session": session.name,
        "status": answer.status,
        "answered": list(answer.answered),
        "late": list(answer.late),
        "checkpoint_id": answer.checkpoint,
    }
