"""Where the stores of tests are."""

from __future__ import annotations

import json
from pathlib import Path


def store_of(project: Path) -> Path:
    """Return the store that a project's pointer names."""
    return Path(json.loads((project / ".mulligan").read_text())["store"])
