"""Recovery: what was interrupted, what resuming does about it, and what a watch reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mulligan.views.effects import effect_plan_view, effect_view
from mulligan.views.points import point_view

if TYPE_CHECKING:
    from mulligan.recovery.detect import InDoubt, Interruption, LostAgent, OpenOperation
    from mulligan.recovery.plan import ResumePlan
    from mulligan.recovery.resume import Resumed
    from mulligan.recovery.resume_agent import Consumed
    from mulligan.recovery.watch import Notice

NOTHING_TO_RESUME: Mapping[str, Any] = {
    "session": None,
    "applied": False,
    "rung": None,
    "to": None,
    "only": None,
    "reset": [],
    "interruption": None,
    "checkpoint_id": None,
    "released": [],
    "next_task": None,
    "consumed": [],
    "files": None,
    "effects": None,
    "start": [],
    "status": None,
    "reason": None,
    "quarantined": [],
    "agents": [],
}
"""The fields of a resume where nothing is interrupted or paused."""


def resume_view(
    plan: ResumePlan | None = None,
    resumed: Resumed | None = None,
    run: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a plan, what was done about it, and how the team was left that was started.

    Without a plan there is nothing to resume; without ``resumed`` it was not carried out; ``run``
    is the view of the run, if agents were started.
    """
    planned = {} if plan is None else _plan_view(plan, resumed)
    return {**NOTHING_TO_RESUME, **planned, **(run or {})}


def interruption_view(found: Interruption) -> dict[str, Any]:
    """Return how a session was interrupted, and what was going on in it."""
    return {
        "why": found.why,
        "last_event": found.last_event,
        "agents": [lost_agent_view(agent) for agent in found.agents],
        "in_doubt": [_in_doubt_view(call) for call in found.in_doubt],
        "effects": [effect_view(effect) for effect in found.effects],
        "operations": [_operation_view(operation) for operation in found.operations],
        "restore": found.restore and point_view(found.restore),
    }


def lost_agent_view(agent: LostAgent) -> dict[str, Any]:
    """Return an agent as the interruption left it."""
    return {
        "name": agent.name,
        "state": agent.state,
        "prompt": agent.prompt,
        "tasks": list(agent.tasks),
        "process_id": agent.process_id,
        "is_alive": agent.is_alive,
    }


def agents_to_start(plan: ResumePlan) -> list[LostAgent]:
    """Return the agents that have to be started by hand, because no supervisor does it."""
    if plan.workflow is not None or plan.interruption is None:
        return []
    return [a for a in plan.interruption.agents if not a.is_at_rest and not a.is_alive]


def notice_view(notice: Notice) -> dict[str, Any]:
    """Return what a watch did about a session."""
    return {
        "session": notice.session,
        "what": notice.what,
        "why": notice.why,
        "rung": notice.rung,
        "wait": notice.wait,
        "pid": notice.pid,
        "tried": notice.tried,
    }


def _plan_view(plan: ResumePlan, resumed: Resumed | None) -> dict[str, Any]:
    return {
        "session": plan.session,
        "applied": resumed is not None,
        "rung": plan.rung,
        "to": plan.point and point_view(plan.point),
        "only": plan.only,
        "reset": list(plan.reset),
        "interruption": plan.interruption and interruption_view(plan.interruption),
        "checkpoint_id": resumed and resumed.checkpoint.id,
        "released": list(plan.release),
        "next_task": plan.next_task,
        "consumed": [_consumed_view(one) for one in plan.consumed],
        "files": _file_count(plan, resumed),
        "effects": plan.effects and effect_plan_view(plan.effects),
        "start": [agent.name for agent in agents_to_start(plan)],
    }


def _file_count(plan: ResumePlan, resumed: Resumed | None) -> int | None:
    if resumed is not None and resumed.restored is not None:
        return resumed.restored.files
    return len(plan.files.files) if plan.files is not None else None


def _consumed_view(found: Consumed) -> dict[str, Any]:
    return {
        "what": found.what,
        "id": found.id,
        "by": found.by,
        "how": found.how,
        "seq": found.seq,
    }


def _in_doubt_view(found: InDoubt) -> dict[str, Any]:
    return {
        "call": found.call,
        "tool": found.tool,
        "agent": found.agent,
        "seq": found.seq,
        "files": None if found.files is None else list(found.files),
        "process_id": found.process,
    }


def _operation_view(found: OpenOperation) -> dict[str, Any]:
    return {"checkpoint": found.checkpoint, "name": found.name, "agent": found.agent}
