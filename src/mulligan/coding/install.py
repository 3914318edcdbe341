"""Installing hooks into a coding agent's own settings, and taking them out again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import msgspec

from mulligan.clock import SystemClock
from mulligan.coding import (
    claude_settings,
    codex_settings,
    gemini_settings,
    opencode_settings,
)
from mulligan.coding.settings_file import SettingsFile
from mulligan.errors import InvalidSettings
from mulligan.failpoints import FailpointHook, ignore
from mulligan.locate.registry import state_directory

Scope = Literal["project", "user"]

AGENTS: Mapping[str, ModuleType] = {
    "claude": claude_settings,
    "codex": codex_settings,
    "gemini": gemini_settings,
    "opencode": opencode_settings,
}
"""The agents that hooks can be installed for: each has a module for its settings.

Such a module has ``project_file(project)``, ``user_file(variables)``, ``files(project, variables)``
with all of them, ``merged(settings, command)``, ``without(settings)`` and ``installed(settings)``.
``FILE`` is how its file is read, if that is not JSON; ``ADVICE`` what is left for a person to do;
``has_server(project, variables)`` whether hooks can call our MCP server, with ``through_server``.
"""

BACKUPS = "backups"
"""The directory, beside the stores, of settings files as they were before a change."""

CREATE = "--create"
"""The option of hooks that are installed for a user: a project without a store gets one."""


class Target(msgspec.Struct, frozen=True):
    """Whose settings are meant: of an agent, for a project or for all projects of a user."""

    agent: str
    scope: Scope
    project: Path
    variables: Mapping[str, str]

    @property
    def file(self) -> Path:
        """The settings file."""
        module = settings_module(self.agent)
        found: Path = (
            module.project_file(self.project)
            if self.scope == "project"
            else module.user_file(self.variables)
        )
        return found


class Installation(msgspec.Struct, frozen=True):
    """What was done to a settings file, or would be; ``backup`` is what it was before."""

    agent: str
    scope: Scope
    file: Path
    diff: str
    is_changed: bool
    backup: Path | None = None


def install(
    target: Target,
    command: Sequence[str],
    *,
    client: Path | None = None,
    dry_run: bool = False,
    failpoint: FailpointHook = ignore,
) -> Installation:
    """Add our hooks to an agent's settings; ``command`` is how Mulligan is started. Idempotent.

    ``client`` is the program that sends hooks to the resident helper, if there is one.
    Raises ``InvalidSettings`` if the settings cannot be merged with; they are unchanged then.
    """
    start = [*command, "hook"] if client is None else [str(client)]
    words = [*start, target.agent, *([CREATE] if target.scope == "user" else [])]
    module = settings_module(target.agent)
    has_server = has_mcp_server(target.agent, target.project, target.variables)
    options = {"through_server": True} if has_server else {}
    return _change(target, lambda found: module.merged(found, words, **options), dry_run, failpoint)


def uninstall(
    target: Target, *, dry_run: bool = False, failpoint: FailpointHook = ignore
) -> Installation:
    """Remove our hooks from an agent's settings; nothing else of them changes. Idempotent."""
    return _change(target, settings_module(target.agent).without, dry_run, failpoint)


def _change(
    target: Target,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    dry_run: bool,
    failpoint: FailpointHook,
) -> Installation:
    file = read_settings(target.agent, target.file)
    wanted = change(file.settings)
    diff = file.diff(wanted)
    is_changed = bool(diff) and not dry_run
    backup = file.write(wanted, _backup(target), failpoint) if is_changed else None
    return Installation(target.agent, target.scope, target.file, diff, is_changed, backup)


def _backup(target: Target) -> Path:
    """Return where the file is copied to: not beside it, where it would be in the way."""
    now = SystemClock().now()
    name = f"{target.agent}-{target.file.name}-{now:%Y%m%dT%H%M%SZ}"
    return state_directory(target.variables) / BACKUPS / name


def has_mcp_server(agent: str, project: Path, variables: Mapping[str, str]) -> bool:
    """Whether the hooks of an agent can call our MCP server in a project."""
    found = getattr(settings_module(agent), "has_server", None)
    return found is not None and bool(found(project, variables))


def read_settings(agent: str, file: Path) -> SettingsFile:
    """Return a settings file of an agent; raises ``InvalidSettings``."""
    kind: type[SettingsFile] = getattr(settings_module(agent), "FILE", SettingsFile)
    return kind(file)


def settings_module(agent: str) -> ModuleType:
    """Return the module for an agent's settings; raises ``InvalidSettings`` if there is none."""
    if agent not in AGENTS:
        raise InvalidSettings(
            f"There is no agent {agent!r} that hooks can be installed for.",
            hint=f"Nothing was changed. Known agents: {', '.join(AGENTS)}.",
        )
    return AGENTS[agent]
