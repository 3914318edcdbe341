"""Hooks of coding agents: installed, taken out, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.coding.doctor import Check
    from mulligan.coding.settings.install import Installation


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


def checks_view(checks: Sequence[Check]) -> dict[str, Any]:
    """Return what `mulligan doctor` found."""
    return {
        "ok": all(check.ok for check in checks),
        "checks": [
            {"name": check.name, "ok": check.ok, "said": check.said, "hint": check.hint}
            for check in checks
        ],
    }
