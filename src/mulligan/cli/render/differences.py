"""Differences as text, for several commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.render.text import GAP, Cell, clean, short, shorten, terminal_width

if TYPE_CHECKING:
    from mulligan import Difference

MAX_VALUE_CHARACTERS = 80
MAX_CHANGED_VALUE_CHARACTERS = 40
"""How much of a value is shown, alone and beside another one; less where a terminal is narrow."""

MIN_VALUE_CHARACTERS = 12

ARROW = " → "

ROOT = "(root)"

AGENT_SESSION = "agent_session"
RECORDED = {
    "conversation": "entries of the conversation",
    "tools": "calls of tools",
    "subagents": "entries of subagents",
    "tool_results": "large results of tools",
    "agents": "what the agent does",
    AGENT_SESSION: "how far its transcript was read",
}
"""What hooks record of a coding agent, by its place in the state; too much to list."""

_SIGNS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}


def print_differences(
    found: Iterable[Difference], limit: int | None = None, indent: str = ""
) -> None:
    """Print one line for each difference, up to a limit."""
    width = terminal_width()
    room = None if width is None else width - len(indent)
    lines = [line for difference in found for line in _lines(difference, room)]
    for line in lines[:limit]:
        click.echo(indent + line)
    if limit is not None and len(lines) > limit:
        click.echo(indent + Cell(f"… and {len(lines) - limit} more", dim=True).styled())


def is_coding_agent(found: Iterable[Difference]) -> bool:
    """Whether differences are of a session that hooks of a coding agent record."""
    return any(one.path[:1] == (AGENT_SESSION,) for one in found)


def print_counted(found: Iterable[Difference]) -> list[Difference]:
    """Print how many differences each part of a coding agent's session has; return the others."""
    counts: dict[str, Counter[str]] = {}
    others = []
    for one in found:
        if one.path and str(one.path[0]) in RECORDED:
            counts.setdefault(str(one.path[0]), Counter())[one.change] += _count(one)
        else:
            others.append(one)
    for part, changes in counts.items():
        kind = next(iter(changes)) if len(changes) == 1 else "changed"
        said = ", ".join(f"{changes[kind]} {kind}" for kind in _SIGNS if changes[kind])
        click.echo(_line(kind, part, f"{RECORDED[part]}: {said}"))
    return others


def _count(difference: Difference) -> int:
    """Return how many entries a difference stands for: a list is one for each of them."""
    value = difference.after if difference.change == "added" else difference.before
    is_list = difference.change != "changed" and isinstance(value, list)
    return max(1, len(value)) if is_list else 1


def _lines(difference: Difference, room: int | None) -> list[str]:
    place = difference.place
    if difference.change == "changed":
        limit = _limit(place, room, MAX_CHANGED_VALUE_CHARACTERS, values=2)
        before, after = _value(difference.before, limit), _value(difference.after, limit)
        return [_line("changed", place, f"{before}{ARROW}{after}")]
    value = difference.after if difference.change == "added" else difference.before
    if isinstance(value, list) and value and all(_is_message(item) for item in value):
        numbered = enumerate(value)
        return [
            _line(difference.change, name, _value(v, _limit(name, room, MAX_VALUE_CHARACTERS)))
            for i, v in numbered
            for name in [f"{place}/{i}"]
        ]
    limit = _limit(place, room, MAX_VALUE_CHARACTERS)
    return [_line(difference.change, place, _value(value, limit))]


def _limit(place: str, room: int | None, most: int, *, values: int = 1) -> int:
    """Return how many characters each value may have, so that its line fits the terminal."""
    if room is None:
        return most
    taken = len("~ ") + len(clean(place) or ROOT) + len(GAP) + len(ARROW) * (values - 1)
    return max(MIN_VALUE_CHARACTERS, min(most, (room - taken) // values))


def _line(change: str, place: str, said: str) -> str:
    sign, colour = _SIGNS[change]
    path = Cell(clean(place) or ROOT, colour).styled()
    return f"{Cell(sign, colour, bold=True).styled()} {path}{GAP}{said}"


def _value(value: Any, limit: int) -> str:
    """Return a shortened value; a message of a conversation as role and text."""
    if _is_message(value):
        return shorten(f"{clean(value['role'])}: {clean(_text(value['content']))}", limit)
    return short(value, limit)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and "content" in value


def _text(content: Any) -> str:
    """Return the text of a message whose content is a string or a list of parts with texts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") or f"[{part.get('type')}]" for part in content if _is_part(part)]
        return " ".join(str(part) for part in parts) or short(content)
    return short(content)


def _is_part(part: Any) -> bool:
    return isinstance(part, dict) and ("text" in part or "type" in part)
