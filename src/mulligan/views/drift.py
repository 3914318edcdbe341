"""Drift: what was found in a session or a recorded run, and what was done about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.drift.detector import Alarm
    from mulligan.drift.replay import Replay
    from mulligan.session import Session
    from mulligan.session.runtime.drift_report import AgentDrift, RecordedResponse, SignalReport
    from mulligan.session.runtime.drift_watch import Isolation


def drift_status(session: Session) -> list[dict[str, Any]]:
    """Return the last response to the drift of each agent that had any; nothing is judged again.

    Read from the session's control as it stands, without the detector: status has to be quick.
    """
    found = session.internal.control("drift", {})
    known = found.items() if isinstance(found, dict) else ()
    shown = [(agent, record) for agent, record in known if isinstance(record, dict)]
    return [_status(agent, record) for agent, record in shown if _last(record)]


def _last(record: dict[str, Any]) -> dict[str, Any]:
    responses = record.get("responses")
    return responses[-1] if isinstance(responses, list) and responses else {}


def _status(agent: str, record: dict[str, Any]) -> dict[str, Any]:
    last = _last(record)
    return {
        "agent": agent,
        "timestamp": last.get("at"),
        "signal": last.get("signal"),
        "rung": last.get("rung"),
        "attempt": last.get("attempt", 0),
        "why": last.get("why"),
        "isolated": record.get("isolated") is not None,
    }


def drift_view(session: Session, seq: int, agents: list[AgentDrift]) -> dict[str, Any]:
    """Return the drift of a session up to an event."""
    return {"session": session.name, "seq": seq, "agents": [_agent(agent) for agent in agents]}


def release_view(session: Session, agent: str) -> dict[str, Any]:
    """Return which agent may go on."""
    return {"session": session.name, "agent": agent}


def replay_view(found: Replay) -> dict[str, Any]:
    """Return what the detector found in a recorded run."""
    return {
        "id": found.id,
        "steps": found.steps,
        "score": round(found.score, 3),
        "fired_at": found.fired_at,
        "alarms": [alarm_view(alarm) for alarm in found.alarms],
    }


def alarm_view(alarm: Alarm) -> dict[str, Any]:
    """Return an alarm with its evidence."""
    return {
        "seq": alarm.seq,
        "signal": alarm.signal,
        "acts": alarm.acts,
        "score": alarm.score,
        "why": alarm.why,
        "evidence": list(alarm.evidence),
    }


def isolation_view(isolation: Isolation | None) -> dict[str, Any] | None:
    """Return since when an agent is isolated, and why; None if it is not."""
    return None if isolation is None else {"timestamp": isolation.at, "why": isolation.why}


def _agent(found: AgentDrift) -> dict[str, Any]:
    return {
        "agent": found.agent,
        "observations": found.observations,
        "score": found.score,
        "isolated": isolation_view(found.isolated),
        "signals": [_signal(signal) for signal in found.signals],
        "alarms": [{**alarm_view(one.alarm), "timestamp": one.at} for one in found.alarms],
        "responses": [_response(response) for response in found.responses],
    }


def _signal(found: SignalReport) -> dict[str, Any]:
    return {
        "signal": found.signal,
        "acts": found.acts,
        "score": found.score,
        "highest": found.highest,
        "series": found.series,
    }


def _response(found: RecordedResponse) -> dict[str, Any]:
    return {
        "seq": found.seq,
        "timestamp": found.at,
        "signal": found.signal,
        "rung": found.rung,
        "attempt": found.attempt,
        "wait_seconds": found.wait,
        "to": found.to,
        "why": found.why,
    }
