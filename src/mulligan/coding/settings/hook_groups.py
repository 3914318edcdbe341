"""Our hooks among others in the settings of an agent: added, found and removed.

Claude Code, Codex and Gemini CLI share the shape: a list of groups for each event, and a list of
hooks in each group. Each of ours is alone in its group.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.coding.settings.settings_file import OneLine
from mulligan.errors import InvalidSettings

HOOKS = "hooks"

TOOL = "mcp_tool"
"""The type of a hook that calls a tool of an MCP server."""

SERVER = "mulligan"
"""The name under which the MCP server is installed."""

CLIENT = "/mulligan/helper/hook"
"""How the path of the client of the resident helper ends."""

Entries = Callable[[str, Sequence[str]], Sequence[dict[str, Any]]]
"""Returns the hooks of an event that run a command, or call a tool, as the agent expects them."""


class HookGroups(msgspec.Struct, frozen=True):
    """The hooks of one agent: for which events, and how they are written."""

    events: Iterable[str]
    entries: Entries

    def merged(self, settings: Mapping[str, Any], command: Sequence[str]) -> dict[str, Any]:
        """Return settings in which our hooks run a command; the hooks of others stay as is."""
        hooks = dict(_hooks(settings))
        for event in self.events:
            wanted = [OneLine({HOOKS: [entry]}) for entry in self.entries(event, command)]
            groups = _groups(hooks, event)
            own = [number for number, group in enumerate(groups) if _is_ours(group)]
            # In place, if there is one: the order of hooks may matter to others.
            first = own[0] if own else len(groups)
            others = [group for group in groups[first:] if not _is_ours(group)]
            hooks[event] = [*groups[:first], *wanted, *others]
        return {**settings, HOOKS: hooks}


def without(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without our hooks, and without what would be left empty by that."""
    hooks: dict[str, Any] = {}
    for event, groups in _hooks(settings).items():
        kept = [g for g in groups if not _is_ours(g)] if isinstance(groups, list) else groups
        if kept or kept == groups:
            hooks[event] = kept
    left = {key: value for key, value in settings.items() if key != HOOKS}
    if HOOKS in settings and (hooks or not _hooks(settings)):
        return {key: hooks if key == HOOKS else value for key, value in settings.items()}
    return left


def installed(settings: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the commands of our hooks by their events; empty where they only call the server."""
    found: dict[str, list[str]] = {}
    for event, entry in _own(settings):
        found[event] = _words(entry) or found.get(event, [])
    return found


def call_server(settings: Mapping[str, Any]) -> bool:
    """Whether some of our hooks call the MCP server."""
    return any(entry.get("type") == TOOL for _, entry in _own(settings))


def _own(settings: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield our hooks with their events."""
    for event, number in places(settings):
        yield event, settings[HOOKS][event][number][HOOKS][0]


def places(settings: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the events of our hooks, each with the place of its group among those of others."""
    return [
        (event, number)
        for event, groups in _hooks(settings).items()
        if isinstance(groups, list)
        for number, group in enumerate(groups)
        if _is_ours(group)
    ]


def _hooks(settings: Mapping[str, Any]) -> dict[str, Any]:
    found = settings.get(HOOKS, {})
    if not isinstance(found, dict):
        raise InvalidSettings(f"{HOOKS!r} in the settings is not an object.")
    return found


def _groups(hooks: Mapping[str, Any], event: str) -> list[Any]:
    found = hooks.get(event, [])
    if not isinstance(found, list):
        raise InvalidSettings(f"{HOOKS}.{event} in the settings is not a list.")
    return found


def _is_ours(group: Any) -> bool:
    """Whether a group of hooks is one that `mulligan install` wrote: only our command in it."""
    entries = group.get(HOOKS) if isinstance(group, dict) else None
    if not isinstance(entries, list) or len(entries) != 1 or not isinstance(entries[0], dict):
        return False
    if entries[0].get("type") == TOOL:
        return (entries[0].get("server"), entries[0].get("tool")) == (SERVER, "hook")
    words = _words(entries[0])
    if words and words[0].endswith(CLIENT):
        return True
    return "hook" in words and any(w == "mulligan" or w.endswith("/mulligan") for w in words)


def _words(entry: Mapping[str, Any]) -> list[str]:
    """Return the words of a hook's command: with ``args``, or in one line for a shell."""
    if entry.get("type") == TOOL:
        return []
    command, args = str(entry.get("command")), entry.get("args")
    if isinstance(args, list):
        return [command, *map(str, args)]
    try:
        return shlex.split(command)
    except ValueError:
        return [command]
