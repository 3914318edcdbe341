"""The hooks of Claude Code in its settings: where they are, how ours are added and removed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mulligan.coding import mcp_input
from mulligan.coding.hook_input import CLAUDE_EVENTS
from mulligan.coding.settings import hook_groups
from mulligan.locate.git import main_work_tree

DISABLED = "disableAllHooks"
"""The setting that turns all hooks off."""

SERVERS = "mcpServers"
OFF = "disabledMcpServers"
"""The servers that a person has turned off in a project."""

SHARED_OFF = "disabledMcpjsonServers"
"""The servers of the project's own file that a person has not accepted."""

TIMEOUT_SECONDS = 30

UNLESS_SERVED = "--unless-served"
"""The option of commands that run beside a call of the server: do nothing if it gets the event."""


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
    # In a worktree of git, the program reads those of the main work tree, too.
    main = main_work_tree(project)
    also = [] if main is None else [project_file(main)]
    return [project_file(project), *also, shared, user_file(variables)]


def server(project: Path | None, variables: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return how the agent starts Mulligan's MCP server in a project, or (None) in all of them.

    None if it does not: it has no such server, or a person has turned it off. Hooks are faster
    through it; where it is not there, calling it would be in vain.
    """
    home = Path(variables.get("CLAUDE_CONFIG_DIR") or variables.get("HOME") or "~").expanduser()
    own = _read(home / ".claude.json")
    if project is None:
        return _table(own, SERVERS).get(hook_groups.SERVER)
    here = _table(_table(own, "projects"), str(project))
    if hook_groups.SERVER in _list(here, OFF):
        return None
    shared = _table(_read(project / ".mcp.json"), SERVERS)
    settings = (here, *(_read(file) for file in files(project, variables)))
    if any(hook_groups.SERVER in _list(one, SHARED_OFF) for one in settings):
        shared = {}
    found = (one.get(hook_groups.SERVER) for one in (_table(here, SERVERS), shared))
    mine = _table(own, SERVERS).get(hook_groups.SERVER)
    return next((one for one in found if isinstance(one, dict)), mine)


def _table(within: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return an object of JSON; a value of another shape counts as an empty one."""
    found = within.get(key)
    return found if isinstance(found, dict) else {}


def _list(within: Mapping[str, Any], key: str) -> list[Any]:
    found = within.get(key)
    return found if isinstance(found, list) else []


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

    With ``through_server``, they call the MCP server at the events at which it is there. The
    command runs beside that, and does nothing while the server is connected.
    """
    entries = _entries_with_server if through_server else _entries
    return hook_groups.HookGroups(tuple(CLAUDE_EVENTS), entries).merged(settings, command)


def _entries(event: str, command: Sequence[str]) -> list[dict[str, Any]]:
    name, *args = command
    # With ``args`` there is no shell in between, and no quoting.
    return [{"type": "command", "command": name, "args": args, "timeout": TIMEOUT_SECONDS}]


def _entries_with_server(event: str, command: Sequence[str]) -> list[dict[str, Any]]:
    if event not in mcp_input.EVENTS:
        return _entries(event, command)
    called = {"type": hook_groups.TOOL, "server": hook_groups.SERVER, "tool": "hook"}
    call = {**called, "input": dict(mcp_input.ARGUMENTS), "timeout": TIMEOUT_SECONDS}
    return [call, *_entries(event, [*command, UNLESS_SERVED])]


without = hook_groups.without
installed = hook_groups.installed
call_server = hook_groups.call_server
