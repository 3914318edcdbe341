"""Points: places on a timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.model import Point


def point_view(point: Point) -> dict[str, Any]:
    """Return a point; its checkpoint is null unless the point was named by one."""
    return {**place_view(point), "checkpoint_id": point.checkpoint}


def place_view(point: Point) -> dict[str, Any]:
    """Return session and number alone, where no checkpoint is meant: where a fork began."""
    return {"session": point.session, "seq": point.seq}
