"""docs/cli-json.md as the tests read it: its sections, and the fields of their tables."""

from __future__ import annotations

import re
from pathlib import Path

CONTRACT = (Path(__file__).parents[1] / "docs/cli-json.md").read_text()


def section(title: str) -> str:
    """Return the text under a heading."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", CONTRACT, re.M | re.S)
    assert found, f"docs/cli-json.md has no section {title!r}"
    return found[1]


def documented(title: str) -> set[str]:
    """Return the fields in the table under a heading."""
    return set(re.findall(r"^\| `(\w+)` \|", section(title), re.M))
