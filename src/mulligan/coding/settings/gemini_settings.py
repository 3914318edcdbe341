"""The hooks of Gemini CLI in its settings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mulligan.coding.hook_input import GEMINI_EVENTS
from mulligan.coding.settings import hook_groups
from mulligan.coding.settings.settings_file import CommentedFile
from mulligan.errors import InvalidSettings

TIMEOUT_MS = 30_000

FILE = CommentedFile

SWITCHES = (("hooksConfig", "enabled"), ("tools", "enableHooks"))
"""What turns hooks on; which one counts depends on the version."""


def project_file(project: Path) -> Path:
    """Return the settings of a project."""
    return project / ".gemini" / "settings.json"


def user_file(variables: Mapping[str, str]) -> Path:
    """Return the settings of a user."""
    home = Path(variables.get("HOME") or "~").expanduser()
    return home / ".gemini" / "settings.json"


def files(project: Path, variables: Mapping[str, str]) -> list[Path]:
    """Return every settings file that may have hooks."""
    return [project_file(project), user_file(variables)]


def merged(settings: Mapping[str, Any], command: Sequence[str]) -> dict[str, Any]:
    """Return settings in which hooks are on, and ours run a command."""
    found = _groups.merged(settings, command)
    for table, key in SWITCHES:
        given = found.get(table, {})
        if not isinstance(given, dict):
            raise InvalidSettings(f"{table!r} in the settings is not an object.")
        found[table] = {**given, key: True}
    return found


def _entries(event: str, command: Sequence[str]) -> list[dict[str, Any]]:
    return [{"type": "command", "command": shlex.join(command), "timeout": TIMEOUT_MS}]


_groups = hook_groups.HookGroups(tuple(GEMINI_EVENTS), _entries)
without = hook_groups.without
installed = hook_groups.installed
