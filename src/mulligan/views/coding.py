"""Hooks of coding agents: installed, taken out, and checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.coding.install import Installation


def installation_view(done: Installation, store: Path | None) -> dict[str, Any]:
    """Return what was done to an agent's settings; ``store`` is the project's, if there is one."""
    return {
        "agent": done.agent,
        "scope": done.scope,
        "file": str(done.file),
        "changed": done.is_changed,
        "diff": done.diff,
        "backup": done.backup and str(done.backup),
        "store": store and str(store),
    }
