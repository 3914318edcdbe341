"""Effects on the outside world, and calls of tools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.model import Effect, EffectPlan, Question, ToolCall
    from mulligan.session import Session


def effect_view(effect: Effect) -> dict[str, Any]:
    """Return an effect."""
    return {
        "id": effect.id,
        "name": effect.name,
        "kind": effect.kind,
        "status": effect.status,
        "is_pending": effect.is_pending,
        "intent": effect.intent,
        "key": effect.key,
        "agent": effect.agent,
        "task": effect.task,
        "stakes": effect.stakes,
        "at": effect.at,
        "seq": effect.seq,
        "attempts": effect.attempts,
        "result": effect.result,
        "error": effect.error,
        "question": effect.question and _question_view(effect.question),
        "acting": effect.acting,
        "undo": effect.undo,
    }


def effects_view(session: Session, effects: Iterable[Effect]) -> dict[str, Any]:
    """Return effects of a session."""
    return {"session": session.name, "effects": [effect_view(effect) for effect in effects]}


def effect_plan_view(plan: EffectPlan) -> dict[str, Any]:
    """Return what going back to a point means for the effects after it."""
    return {
        "compensated": [effect_view(effect) for effect in plan.compensated],
        "left_behind": [effect_view(effect) for effect in plan.left_behind],
        "repeatable": [effect_view(effect) for effect in plan.repeatable],
    }


def call_view(call: ToolCall) -> dict[str, Any]:
    """Return a call of a tool."""
    return {
        "id": call.id,
        "name": call.name,
        "status": call.status,
        "args": call.args,
        "agent": call.agent,
        "task": call.task,
        "at": call.at,
        "seq": call.seq,
        "result": call.result,
        "error": call.error,
        "before": call.before,
        "after": call.after,
        "acting": call.acting,
        "process": call.process,
        "files": call.files,
    }


def calls_view(session: Session, calls: Iterable[ToolCall]) -> dict[str, Any]:
    """Return calls of tools in a session."""
    return {"session": session.name, "calls": [call_view(call) for call in calls]}


def acts_view(session: Session) -> dict[str, Any]:
    """Return how many effects and calls of tools need a look."""
    if not session.internal.has_acts:
        return {"pending": 0, "in_doubt": 0, "left_behind": 0, "calls_in_doubt": 0}
    effects = session.effects.list(pending=True, in_doubt=True)
    return {
        "pending": sum(effect.is_pending for effect in effects),
        "in_doubt": sum(not effect.is_pending for effect in effects),
        "left_behind": len(_outside(session)),
        "calls_in_doubt": len(session.tools.list(in_doubt=True)),
    }


def _outside(session: Session) -> dict[str, Any]:
    found = session.state.get("outside")
    return found if isinstance(found, dict) else {}


def _question_view(question: Question) -> dict[str, Any]:
    return {
        "at": question.at,
        "expires": question.expires,
        "by": question.by,
        "answered": question.answered,
        "note": question.note,
    }
