"""The hooks of Codex: a file of their own, in its directory or in the project's."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mulligan.coding.hook_input import CODEX_EVENTS
from mulligan.coding.settings import hook_groups

TIMEOUT_SECONDS = 30

SESSION_END_SECONDS = 3
"""How long Codex lets the last hook of a session run at most."""

ADVICE = (
    "Codex runs the hooks of a project only if you trust the project, and new hooks only after you "
    "have trusted them, too: open /hooks in it once."
)


def project_file(project: Path) -> Path:
    """Return the hooks of a project."""
    return project / ".codex" / "hooks.json"


def user_file(variables: Mapping[str, str]) -> Path:
    """Return the hooks of a user."""
    return _home(variables) / "hooks.json"


def _home(variables: Mapping[str, str]) -> Path:
    home = Path(variables.get("HOME") or "~").expanduser()
    return Path(variables.get("CODEX_HOME") or home / ".codex")


def files(project: Path, variables: Mapping[str, str]) -> list[Path]:
    """Return every file that may have hooks."""
    return [project_file(project), user_file(variables)]


def untrusted(file: Path, settings: Mapping[str, Any], variables: Mapping[str, str]) -> bool:
    """Whether a person has not trusted some of our hooks in a file yet: Codex does not run them.

    Codex notes the hooks that it may run by file, event and place, with a digest of its own, so a
    hook that was changed since is not told from one that was not.
    """
    known = _trusted(variables)
    return any(
        f"{os.path.realpath(file)}:{_snake(event)}:{number}:0" not in known
        for event, number in hook_groups.places(settings)
    )


def _trusted(variables: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        found = tomllib.loads((_home(variables) / "config.toml").read_text())
        state = found["hooks"]["state"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # nothing was trusted yet
    return state if isinstance(state, dict) else {}


def _snake(event: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", event).lower()


def _entries(event: str, command: Sequence[str]) -> list[dict[str, Any]]:
    seconds = SESSION_END_SECONDS if event == "SessionEnd" else TIMEOUT_SECONDS
    return [{"type": "command", "command": shlex.join(command), "timeout": seconds}]


merged = hook_groups.HookGroups(tuple(CODEX_EVENTS), _entries).merged
without = hook_groups.without
installed = hook_groups.installed
