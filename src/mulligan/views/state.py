"""Writes to the state. A value that is read is its own view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.session import Session


def written_view(session: Session, path: str) -> dict[str, Any]:
    """Return where something was set, appended or deleted."""
    return {"session": session.name, "path": path}
