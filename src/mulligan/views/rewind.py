"""Rewinds of a coding agent: its prompts, what a rewind would do, and what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mulligan.views.effects import call_view, effect_view
from mulligan.views.files import file_change_views, problem_views
from mulligan.views.points import point_view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mulligan.coding.rewind.run import RewindPlan, RewindResult, Rewound
    from mulligan.coding.rewind.target import Conversation, RewindPrompt
    from mulligan.model import Restored


def prompts_view(found: Conversation, prompts: Sequence[RewindPrompt]) -> dict[str, Any]:
    """Return the prompts of a conversation, oldest first."""
    return {
        "session": found.session.name,
        "agent": found.agent.agent,
        "agent_session": found.agent.id,
        "is_live": found.session.internal.is_held(found.agent.agent),
        "prompts": [prompt_view(prompt) for prompt in prompts],
    }


def prompt_view(prompt: RewindPrompt) -> dict[str, Any]:
    """Return a prompt; files are null if no checkpoint was taken before it."""
    taken = prompt.checkpoint
    return {
        "number": prompt.number,
        "time": prompt.prompt.time,
        "text": prompt.prompt.text,
        "checkpoint_id": taken and taken.id,
        "files": None if prompt.files is None else file_change_views(prompt.files),
    }


def planned_rewind_view(plan: RewindPlan) -> dict[str, Any]:
    """Return what a rewind would do; ids and the transcript are made when it is done."""
    view = rewind_view(plan, None)
    return {**view, "new_agent_session": None, "transcript": None}


def rewind_view(
    plan: RewindPlan, command: str | None, done: RewindResult | None = None
) -> dict[str, Any]:
    """Return a rewind: what would be done, or what was done."""
    restored = None if done is None else done.restored
    first = plan.target.prompt
    kept = None if plan.entries is None else len(plan.entries)
    return {
        "applied": done is not None,
        "session": plan.session,
        "agent": plan.agent.agent,
        "agent_session": plan.agent.id,
        "is_live": plan.is_live,
        "in_doubt": [call_view(one) for one in plan.in_doubt],
        "what": plan.what,
        "to": point_view(plan.point),
        "prompt": first and prompt_view(first),
        "new_session": done and done.session,
        "new_agent_session": plan.id if kept is not None else None,
        "transcript": str(plan.transcript) if plan.entries else None,
        "entries": kept,
        "kept_prompts": plan.target.kept,
        "closed_calls": plan.closed,
        "directory": str(plan.start),
        "fork": plan.fork and str(plan.fork),
        "command": command,
        "files": None if plan.files is None else file_change_views(plan.files.files),
        "effects": [
            effect_view(effect)
            for effect in (
                *plan.effects.compensated,
                *plan.effects.left_behind,
                *plan.effects.repeatable,
            )
        ],
        **_restored(restored),
    }


def undone_view(
    session: str, known: Rewound, command: str | None, done: Restored | None
) -> dict[str, Any]:
    """Return a rewind that was undone; ``session`` is the one that it had made."""
    return {
        "applied": True,
        "session": known.left,
        "agent_session": known.agent_id,
        "new_session": session,
        "command": command,
        **_restored(done),
    }


def _restored(done: Restored | None) -> dict[str, Any]:
    return {
        "safety": done and done.safety.id,
        "restored_files": done.files if done else 0,
        "problems": problem_views(done.problems if done else ()),
    }
