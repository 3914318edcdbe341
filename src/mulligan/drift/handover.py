"""The hand-over: what an agent is told that starts again with a clean context.

Goals, constraints and decisions come from the component ``context``, tasks from ``tasks``, what was
done outside from ``outside``. Each part is short, so that all of it fits into a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mulligan.drift.ladder import ROLLBACK, Response

MAX_ITEMS = 12
MAX_CHARACTERS = 300
"""How much of each part is told."""

FINISHED = ("completed", "skipped")


def handover(state: Mapping[str, Any], agent: str, last: Response, tried: list[str]) -> str:
    """Return the hand-over of an agent; ``tried`` is what it did that led nowhere."""
    parts = [_why(last)]
    for title, lines in _sections(state, agent, tried):
        if lines:
            shown = [f"- {_short(line)}" for line in lines[:MAX_ITEMS]]
            if len(lines) > MAX_ITEMS:
                shown.append(f"- and {len(lines) - MAX_ITEMS} more")
            parts.append("\n".join([f"{title}:", *shown]))
    return "\n\n".join(parts)


def _why(last: Response) -> str:
    how = "Your context was cleaned up"
    if last.rung == ROLLBACK:
        how = "You were taken back to the last good checkpoint"
    return f"{how}, because {last.why}. Do not do the same again; try another way."


def _sections(
    state: Mapping[str, Any], agent: str, tried: list[str]
) -> Iterator[tuple[str, list[str]]]:
    context = _mapping(state.get("context"))
    yield "Goals", _lines(context.get("goals", context.get("goal")))
    yield "Constraints", _lines(context.get("constraints"))
    yield "Decisions", _lines(context.get("decisions"))
    tasks = sorted(_records(state.get("tasks")), key=lambda task: task.get("order", 0))
    finished = [task for task in tasks if task.get("status") in FINISHED]
    is_open = [task for task in tasks if task not in finished]
    yield "Finished", [_task(task) for task in finished]
    yield "Open", [_task(task) for task in is_open]
    yield "Tried without success", tried
    yield "Next", _next(_mapping(_mapping(state.get("agents")).get(agent)), is_open, agent)
    yield "Already done outside, and not undone", _lines(_outside(state.get("outside")))


def _next(record: Mapping[str, Any], is_open: list[dict[str, Any]], agent: str) -> list[str]:
    """Return what to do next: the task it works on, else the first one that waits."""
    own = [task for task in is_open if task.get("owner") == agent]
    waiting = [task for task in is_open if task.get("status") == "pending"]
    if found := [*own, *waiting][:1]:
        return [_task(found[0])]
    doing = record.get("working_on")
    return [str(doing)] if doing else []


def _task(task: Mapping[str, Any]) -> str:
    said = task.get("error") or task.get("note")
    title = f"{task.get('title') or task.get('id')}"
    return f"{title} ({task.get('status')}: {said})" if said else title


def _outside(value: Any) -> list[str]:
    return [
        f"{record.get('name', name)}: {record.get('intent', '')}".rstrip(": ")
        for name, record in _mapping(value).items()
        if isinstance(record, dict)
    ]


def _lines(value: Any) -> list[str]:
    """Return a value of the application as lines: texts, lists and dicts of texts."""
    if value is None or value == "":
        return []
    if isinstance(value, list | tuple):
        return [_line(item) for item in value]
    if isinstance(value, dict):
        return [f"{key}: {_line(item)}" for key, item in value.items()]
    return [str(value)]


def _line(item: Any) -> str:
    if isinstance(item, dict):
        texts = [
            str(item[key]) for key in ("title", "text", "what", "why", "content") if key in item
        ]
        return " – ".join(texts) or str(item)
    return str(item)


def _records(value: Any) -> list[dict[str, Any]]:
    return [
        {"id": name, **record}
        for name, record in _mapping(value).items()
        if isinstance(record, dict)
    ]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _short(line: str) -> str:
    folded = " ".join(line.split())
    return folded if len(folded) <= MAX_CHARACTERS else f"{folded[: MAX_CHARACTERS - 1]}…"
