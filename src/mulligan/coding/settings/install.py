"""Installing hooks into a coding agent's own settings, and taking them out again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import msgspec

from mulligan.clock import SystemClock
from mulligan.coding.settings import (
    claude_settings,
    codex_settings,
    gemini_settings,
    opencode_settings,
)
from mulligan.coding.settings.additions import (
    AdditionsRecord,
    Switch,
    records,
    without_switches,
)
from mulligan.coding.settings.put_back import FILES, OF_ONE_USER
from mulligan.coding.settings.settings_file import SettingsFile
from mulligan.errors import InvalidSettings
from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.locate.git import drop_exclusion, exclude_file, missing_exclusion

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
``SWITCHES`` the keys that turn hooks on; ``untrusted(file, settings, variables)`` whether the agent
does not run our hooks in a file before a person has trusted them;
``server(project, variables)`` how our MCP server is started there, which hooks then call, with
``through_server``.
"""

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
    # Hooks of a user run in all projects, so the server has to be there in all of them.
    project = target.project if target.scope == "project" else None
    server = mcp_server(target.agent, project, target.variables)
    options = {} if server is None else {"through_server": True}
    file = read_settings(target.agent, target.file)
    text = file.changed(module.merged(file.settings, words, **options))
    if not dry_run:
        _note_additions(target, file, module, text)
        _exclude(target)
        failpoint(Failpoint.SETTINGS_NOTED)
    return _change(target, file, text, dry_run, failpoint)


def _exclude(target: Target) -> None:
    """Make git ignore a file that is of one user alone: it names a path of this machine.

    An agent's ``git add -A`` would commit it, and the hooks of all others would fail.
    """
    if _is_of_one_user(target):
        exclude_file(target.project, FILES[target.agent])


def _is_of_one_user(target: Target) -> bool:
    return target.scope == "project" and target.agent in OF_ONE_USER


def _note_additions(
    target: Target, file: SettingsFile, module: ModuleType, text: str | None
) -> None:
    """Record what is added now; of hooks that are there already, that they were installed."""
    record = AdditionsRecord(records(target.variables), target.file)
    is_again = bool(file.exists and module.installed(file.settings))
    exclusion = ""
    if _is_of_one_user(target):
        exclusion = missing_exclusion(target.project, FILES[target.agent])
    try:
        if is_again and record.exists:
            record.write_again(file, text, exclusion=exclusion)
            return
        switches = _switches(module)
        record.write(file, text, switches, exclusion=exclusion, is_again=is_again)
    except OSError as error:
        raise InvalidSettings(f"{file.path} cannot be recorded: {error.strerror}.") from error


def uninstall(
    target: Target, *, dry_run: bool = False, failpoint: FailpointHook = ignore
) -> Installation:
    """Remove our hooks from an agent's settings; nothing else of them changes. Idempotent.

    A file that ``install`` made and that has nothing else in it is removed, and its directories.
    One that nothing else has changed since gets the very bytes that it had.
    """
    module, record = (
        settings_module(target.agent),
        AdditionsRecord(records(target.variables), target.file),
    )
    file, added = read_settings(target.agent, target.file), record.read()
    left = without_switches(module.without(file.settings), added.switches)
    is_empty = added.is_made and left == file.EMPTY
    text = added.original(file.text)
    if text is None and not is_empty:
        text = file.changed(left)
    done = _change(target, file, text, dry_run, failpoint)
    if not dry_run:
        if added.exclusion:
            drop_exclusion(target.project, added.exclusion)
        record.tidy()
    return done


def _switches(module: ModuleType) -> Sequence[Switch]:
    found: Sequence[Switch] = getattr(module, "SWITCHES", ())
    return found


def _change(
    target: Target,
    file: SettingsFile,
    text: str | None,
    dry_run: bool,
    failpoint: FailpointHook,
) -> Installation:
    diff = file.diff(text)
    is_changed = bool(diff) and not dry_run
    backup = file.write(text, _backup(target), failpoint) if is_changed else None
    return Installation(target.agent, target.scope, target.file, diff, is_changed, backup)


def _backup(target: Target) -> Path:
    """Return where the file is copied to: not beside it, where it would be in the way."""
    now = SystemClock().now()
    name = f"{target.agent}-{target.file.name}-{now:%Y%m%dT%H%M%SZ}"
    return records(target.variables) / name


def mcp_server(
    agent: str, project: Path | None, variables: Mapping[str, str]
) -> Mapping[str, Any] | None:
    """Return how an agent starts our MCP server in a project, or (None) in all of them.

    None if it does not, or if its hooks cannot call a server.
    """
    find = getattr(settings_module(agent), "server", None)
    found = None if find is None else find(project, variables)
    return found if isinstance(found, Mapping) else None


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
