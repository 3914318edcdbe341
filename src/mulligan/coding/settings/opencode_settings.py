"""The plugin through which opencode reports events: a file of our own in its plugin directory."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from mulligan.coding.hook_input import OPENCODE_EVENTS
from mulligan.coding.settings.settings_file import SettingsFile
from mulligan.errors import InvalidSettings

NAME = "mulligan.js"
TEXT = "text"

_COMMAND = "const COMMAND = /* command */ "


class PluginFile(SettingsFile):
    """The file of a plugin: its text is all of its settings. Without text there is no file."""

    EMPTY: ClassVar[Mapping[str, Any]] = {TEXT: ""}

    def _parsed(self) -> dict[str, Any]:
        return {TEXT: self.text}

    def changed(self, settings: dict[str, Any]) -> str | None:
        """Return the text of the plugin; None for none."""
        return str(settings[TEXT]) or None


FILE = PluginFile


def project_file(project: Path) -> Path:
    """Return the plugin of a project."""
    return project / ".opencode" / "plugin" / NAME


def user_file(variables: Mapping[str, str]) -> Path:
    """Return the plugin of a user."""
    home = Path(variables.get("HOME") or "~").expanduser()
    return Path(variables.get("XDG_CONFIG_HOME") or home / ".config") / "opencode/plugin" / NAME


def files(project: Path, variables: Mapping[str, str]) -> list[Path]:
    """Return every place where the plugin may be."""
    return [project_file(project), user_file(variables)]


def merged(settings: Mapping[str, Any], command: Sequence[str]) -> dict[str, Any]:
    """Return the plugin that runs a command; raises ``InvalidSettings`` for a file of others."""
    _refuse_others(settings)
    template = Path(__file__).with_name("opencode_plugin.js").read_text(encoding="utf-8")
    text = template.replace(f"{_COMMAND}[]", _COMMAND + json.dumps(list(command)), 1)
    return {TEXT: text}


def without(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return no plugin; raises ``InvalidSettings`` for a file of others."""
    _refuse_others(settings)
    return {TEXT: ""}


def installed(settings: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the command that the plugin runs, for each of its events."""
    found = re.search(re.escape(_COMMAND) + r"(\[.*\])$", settings[TEXT], re.MULTILINE)
    return dict.fromkeys(OPENCODE_EVENTS, json.loads(found[1])) if found else {}


def _refuse_others(settings: Mapping[str, Any]) -> None:
    if settings[TEXT] and _COMMAND not in settings[TEXT]:
        raise InvalidSettings(
            "The plugin's file belongs to another program.",
            hint="Nothing was changed. Rename that file, then try again.",
        )
