"""What the turns of a session of the OpenAI Agents SDK consisted of, and what they used.

A turn begins with a message of the user; items before the first one are turn 0. Tokens are stored
per branch and turn in the component ``usage``; everything else is read from the items.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic_core import to_jsonable_python

from mulligan.integrations.handles import delete_if_present
from mulligan.integrations.json_values import all_from_stored, from_stored
from mulligan.integrations.openai_branches import Branches, is_user, items_path
from mulligan.session import Session
from mulligan.session.parts.state import State

USAGE = "usage"
SUMS = ("requests", "input_tokens", "output_tokens", "total_tokens")
DETAILS = ("input_tokens_details", "output_tokens_details")

SEARCH = "tool_search"
NAMED_BY_TYPE = (
    "computer_call", "file_search_call", "web_search_call", "code_interpreter_call",
    "shell_call", "apply_patch_call",
)  # fmt: skip
CALLS = (
    *NAMED_BY_TYPE, "tool_call", "function_call", "custom_tool_call", "mcp_call",
    "mcp_approval_request", "tool_search_call",
)  # fmt: skip


class Usage:
    """The turns of one session: their items, tools and tokens."""

    def __init__(self, session: Session, branches: Branches) -> None:
        self._state = session.state
        self._branches = branches

    def store(self, branch: str, usage: Any) -> None:
        """Store what the latest turn of a branch used; without a turn, nothing is stored."""
        stored = _stored(usage)

        def store(state: State) -> None:
            if turn := _latest_turn(state, branch):
                state.set((USAGE, branch, str(turn)), stored)

        self._state.transaction(store)

    def pop(self, branch: str) -> Any:
        """Remove and return the last item of a branch, and with a turn's first what it used."""

        def pop(state: State) -> Any:
            last = all_from_stored(state.tail(items_path(branch), 1))
            if last and is_user(last[0]):
                delete_if_present(state, USAGE, branch, str(_latest_turn(state, branch)))
            return state.pop(items_path(branch))

        return from_stored(self._state.transaction(pop))

    def forget(self, branch: str | None = None) -> None:
        """Remove what a branch used, or all of them. Inside of a batch, too."""
        delete_if_present(self._state, USAGE, *([] if branch is None else [branch]))

    def of_turn(self, turn: int, branch: str | None) -> dict[str, Any]:
        """Return what a turn used; empty if that is not known."""
        known = self._branches.known() if branch is None else branch
        return dict(self._state.get((USAGE, known, str(turn)), {}))

    def of_turns(self, branch: str | None) -> list[dict[str, Any]]:
        """Return what each turn of a branch used, as far as known."""
        known = self._branches.known() if branch is None else branch
        found = self._state.get((USAGE, known), {})
        turns = sorted(int(turn) for turn in found)
        return [{"user_turn_number": turn, **found[str(turn)]} for turn in turns]

    def total(self, branch: str | None) -> dict[str, int] | None:
        """Return what a branch, or all of them, used together; None if nothing is known."""
        found = self._state.get((USAGE,), {})
        branches = [*found.values()] if branch is None else [found.get(branch, {})]
        turns = [used for turns in branches for used in turns.values()]
        if not turns:
            return None
        sums = {name: sum(used[name] for used in turns) for name in SUMS}
        return {**sums, "total_turns": len(turns)}

    def by_turn(self, branch: str | None) -> dict[int, list[dict[str, str | None]]]:
        """Return the kind and the tool of each item, by turn."""
        found: dict[int, list[dict[str, str | None]]] = {}
        for turn, item in self._items(branch):
            found.setdefault(turn, []).append({"type": _kind(item), "tool_name": _tool(item)})
        return found

    def tools(self, branch: str | None) -> list[tuple[str | None, int, int]]:
        """Return how often each tool was called in each turn: name, count, turn."""
        items = [(turn, _kind(item), _tool(item)) for turn, item in self._items(branch)]
        searched = {turn for turn, kind, _ in items if kind == "tool_search_call"}
        counts = Counter(
            (turn, tool)
            for turn, kind, tool in items
            if kind in CALLS or (kind == "tool_search_output" and turn not in searched)
        )
        ordered = sorted(counts.items(), key=lambda pair: (pair[0][0], pair[0][1] or ""))
        return [(tool, count, turn) for (turn, tool), count in ordered]

    def _items(self, branch: str | None) -> Iterator[tuple[int, Any]]:
        known = self._branches.known() if branch is None else branch
        return _numbered(all_from_stored(self._state.get(items_path(known), [])))


def _latest_turn(state: State, branch: str) -> int:
    items = all_from_stored(state.get(items_path(branch), []))
    return sum(is_user(item) for item in items)


def _numbered(items: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    turn = 0
    for item in items:
        turn += is_user(item)
        yield turn, item


def _stored(usage: Any) -> dict[str, Any]:
    sums = {name: int(getattr(usage, name, 0) or 0) for name in SUMS}
    details = {name: to_jsonable_python(getattr(usage, name, None)) or None for name in DETAILS}
    return {**sums, **details}


def _kind(item: Any) -> str:
    if not isinstance(item, dict):
        return "other"
    role = item.get("role")
    return str(role if role in ("user", "assistant") else item.get("type") or "other")


def _tool(item: Any) -> str | None:
    """Return the name of the tool that an item calls; of MCP and others, with its namespace."""
    if not isinstance(item, dict):
        return None
    kind, name, space = item.get("type"), item.get("name"), item.get("namespace")
    if kind in ("tool_search_call", "tool_search_output"):
        return SEARCH
    if kind in NAMED_BY_TYPE:
        return str(kind)
    if kind in ("mcp_call", "mcp_approval_request"):
        space = item.get("server_label")
    if name is None or not space or space == name:
        named = name if name is not None else (space if kind != "function_call" else None)
        return None if named is None else str(named)
    return f"{space}.{name}"
