"""Recovery of sessions: what was interrupted, what to do about it, and what broke it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.recovery.detect import in_doubt, interrupted
    from mulligan.recovery.plan import plan_resume

__all__ = ["in_doubt", "interrupted", "plan_resume"]

_HOMES = {
    "in_doubt": "mulligan.recovery.detect",
    "interrupted": "mulligan.recovery.detect",
    "plan_resume": "mulligan.recovery.plan",
}
"""Where the public names live; imported when first used, since their modules are large."""


def __getattr__(name: str) -> Any:
    """Import a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
