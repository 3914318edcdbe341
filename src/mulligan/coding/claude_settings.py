"""The hooks of Claude Code in its settings: where they are, how ours are added and removed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mulligan.coding import mcp_input
from mulligan.coding.hook_input import CLAUDE_EVENTS
from mulligan.coding.settings_file import OneLine
from mulligan.errors import InvalidSettings

HOOKS = "hooks"
DISABLED = "disableAllHooks"
"""The setting that turns all hooks off."""

SERVER = "mulligan"
"""The name of Mulligan's MCP server in the agent's settings."""

TIMEOUT_SECONDS = 30


def project_file(project: Path) -> Path:
    """Return the settings of a project that are one person's: they name a path of this machine."""
    return project / ".claude" / "settings.local.json"


def user_file(variables: Mapping[str, str]) -> Path:
    """Return the settings of a user."""
    home = Path(variables.get("HOME") or "~").expanduser()
    return Path(variables.get("CLAUDE_CONFIG_DIR") or home / ".claude") / "settings.json"


def files(project: Path, variables: Mapping[str, str]) -> list[Path]:
    """Return every settings file that may have hooks, the strongest first."""
    shared = project / ".claude" / "settings.json"
    return [project_file(project), shared, user_file(variables)]


def has_server(project: Path, variables: Mapping[str, str]) -> bool:
    """Whether the agent starts Mulligan's MCP server in a project; hooks are faster through it."""
    return any(SERVER in servers for servers in _servers(project, variables))


def _servers(project: Path, variables: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    """Yield the tables of servers that the agent reads; a file of another shape has none."""
    home = Path(variables.get("CLAUDE_CONFIG_DIR") or variables.get("HOME") or "~").expanduser()
    own, shared = _read(home / ".claude.json"), _read(project / ".mcp.json")
    projects = own.get("projects")
    known = projects.get(str(project)) if isinstance(projects, dict) else None
    for table in (own, shared, known):
        servers = table.get("mcpServers") if isinstance(table, dict) else None
        if isinstance(servers, dict):
            yield servers


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def merged(
    settings: Mapping[str, Any], command: Sequence[str], *, through_server: bool = False
) -> dict[str, Any]:
    """Return settings in which our hooks run a command; the hooks of others stay as they are.

    With ``through_server``, they call the MCP server instead at the events at which it is there.
    """
    hooks = dict(_hooks(settings))
    for event in CLAUDE_EVENTS:
        groups = _groups(hooks, event)
        wanted = _group(command)
        if through_server and event in mcp_input.EVENTS:
            wanted = _tool_group()
        own = [number for number, group in enumerate(groups) if _is_ours(group)]
        # In place, if there is one: the order of hooks may matter to others.
        if own:
            kept = [g for n, g in enumerate(groups) if n == own[0] or n not in own]
            hooks[event] = [wanted if _is_ours(group) else group for group in kept]
        else:
            hooks[event] = [*groups, wanted]
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
    """Return the commands of our hooks by their events; empty for a call of the MCP server."""
    found: dict[str, list[str]] = {}
    for event, groups in _hooks(settings).items():
        for group in groups if isinstance(groups, list) else ():
            if _is_ours(group):
                entry = group[HOOKS][0]
                words = [entry["command"], *entry.get("args", [])] if "command" in entry else []
                found[event] = words
    return found


def _group(command: Sequence[str]) -> dict[str, Any]:
    name, *args = command
    # With ``args`` there is no shell in between, and no quoting.
    entry = {"type": "command", "command": name, "args": args, "timeout": TIMEOUT_SECONDS}
    return OneLine({HOOKS: [entry]})


def _tool_group() -> dict[str, Any]:
    entry = {"type": "mcp_tool", "server": SERVER, "tool": "hook"}
    return OneLine(
        {HOOKS: [{**entry, "input": dict(mcp_input.ARGUMENTS), "timeout": TIMEOUT_SECONDS}]}
    )


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
    if entries[0].get("type") == "mcp_tool":
        return (entries[0].get("server"), entries[0].get("tool")) == (SERVER, "hook")
    args = entries[0].get("args")
    words = [str(entries[0].get("command")), *(args if isinstance(args, list) else [])]
    return "hook" in words and any(
        word == "mulligan" or word.endswith("/mulligan") for word in words if isinstance(word, str)
    )
