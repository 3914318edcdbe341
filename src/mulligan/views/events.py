"""Events of a session's journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.model import Event


def event_view(event: Event) -> dict[str, Any]:
    """Return an event with its hash and the hash of the one before."""
    return {
        "session": event.session,
        "seq": event.seq,
        "timestamp": event.time,
        "actor": event.actor,
        "epoch": event.epoch,
        "kind": event.kind,
        "payload": event.payload,
        "prev": event.prev.hex(),
        "hash": event.hash.hex(),
    }
