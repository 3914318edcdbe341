"""The hooks of Codex: a file of their own, in its directory or in the project's."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mulligan.coding.hook_input import CODEX_EVENTS
from mulligan.coding.settings import hook_groups

TIMEOUT_SECONDS = 30

SESSION_END_SECONDS = 3
"""How long Codex lets the last hook of a session run at most."""

ADVICE = "Codex runs new hooks only after you have trusted them: open /hooks in it once."


def project_file(project: Path) -> Path:
    """Return the hooks of a project."""
    return project / ".codex" / "hooks.json"


def user_file(variables: Mapping[str, str]) -> Path:
    """Return the hooks of a user."""
    home = Path(variables.get("HOME") or "~").expanduser()
    return Path(variables.get("CODEX_HOME") or home / ".codex") / "hooks.json"


def files(project: Path, variables: Mapping[str, str]) -> list[Path]:
    """Return every file that may have hooks."""
    return [project_file(project), user_file(variables)]


def _entry(event: str, command: Sequence[str]) -> dict[str, Any]:
    seconds = SESSION_END_SECONDS if event == "SessionEnd" else TIMEOUT_SECONDS
    return {"type": "command", "command": shlex.join(command), "timeout": seconds}


merged = hook_groups.HookGroups(tuple(CODEX_EVENTS), _entry).merged
without = hook_groups.without
installed = hook_groups.installed
