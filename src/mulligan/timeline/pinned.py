"""Pinned checkpoints: those that a person wants to keep, whatever the retention policy says.

No restore touches this, as with marks. It has nothing to do with ``mulligan.pins``, which keeps
objects for as long as an operation runs.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mulligan.decoding import ready
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import CONTROL, Change, event_change
from mulligan.document.values import freeze
from mulligan.model import Path

PINNED: Path = (*CONTROL, "pinned")
CHECKPOINT_PINNED = "checkpoint.pinned"
CHECKPOINT_UNPINNED = "checkpoint.unpinned"


class PinnedBy(msgspec.Struct, frozen=True):
    """Who pinned a checkpoint, and why."""

    by: str
    note: str | None = None


def pin_change(checkpoint: str, pinned: PinnedBy) -> Change:
    """Return the event that pins a checkpoint."""
    value = freeze(msgspec.to_builtins(pinned), PINNED)
    control = [[[PINNED[-1], checkpoint], value]]
    return event_change(CHECKPOINT_PINNED, control=control, checkpoint=checkpoint)


def unpin_change(checkpoint: str) -> Change:
    """Return the event that unpins a checkpoint, which must be pinned."""
    control = [[[PINNED[-1], checkpoint]]]
    return event_change(CHECKPOINT_UNPINNED, control=control, checkpoint=checkpoint)


def read_pinned(document: Document) -> dict[str, PinnedBy]:
    """Return the pinned checkpoints in a document, by their ids."""
    found = document.find(PINNED)
    plain: dict[str, Any] = {} if found is MISSING else document.plain(found)
    return {
        checkpoint: msgspec.convert(pinned, ready(PinnedBy)) for checkpoint, pinned in plain.items()
    }
