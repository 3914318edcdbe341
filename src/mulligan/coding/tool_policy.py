"""Which calls of tools need approval, by the rules for effects in the store's ``config.toml``.

::

    [[effects.rules]]
    name = "Bash(git push*)"
    approval = "ask"

A rule is for a tool if its name matches the tool's, or the tool's with what it is about in
parentheses: the command of a shell, the path of a file, an address. A rule for every effect, of
the name ``*``, is not about tools: most calls read or write files, which a restore brings back.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from mulligan.model import EffectRule

if TYPE_CHECKING:
    from mulligan.coding.hook_input import ToolUse
    from mulligan.model import Approval

_ABOUT = (
    "command",
    "file_path",
    "filePath",
    "path",
    "notebook_path",
    "url",
    "query",
    "pattern",
    "description",
)
"""The inputs that say what a call is about, the first one that it has."""


def about(tool: ToolUse) -> str:
    """Return what a call is about: its command, file or address; empty if that cannot be told."""
    given = tool.input if isinstance(tool.input, Mapping) else {}
    found = (given.get(key) for key in _ABOUT)
    return next((text for text in found if isinstance(text, str)), "")


def approval(rules: Iterable[EffectRule], tool: ToolUse) -> tuple[Approval, str]:
    """Return whether a call needs approval, and the name of the rule that says so."""
    full = f"{tool.name}({about(tool)})"
    for rule in rules:
        if rule.approval is None or rule.name == "*":
            continue
        if fnmatch.fnmatchcase(full, rule.name) or fnmatch.fnmatchcase(tool.name, rule.name):
            return rule.approval, rule.name
    return "auto", ""
