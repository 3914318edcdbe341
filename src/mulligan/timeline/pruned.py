"""Checkpoints that retention removed: until their events are folded away, it is known why."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from mulligan.engine import Engine
from mulligan.journal.protocol import View
from mulligan.timeline.checkpoints import event_at

PRUNED = "upkeep.pruned"


class PrunedCheckpoint(NamedTuple):
    """Where a removed checkpoint was, when it was removed, and by which rule, if that is known."""

    session: int
    seq: int
    id: str
    removed: datetime | None
    rule: str | None


def find_pruned(engine: Engine, view: View, number: int, name: str) -> PrunedCheckpoint | None:
    """Return the newest removed checkpoint that a session's label or an id's prefix named."""
    for seq, identity in _pruned(view, number):
        if event_at(view, number, seq).payload.get("label") == name:
            return _described(engine, view, number, seq, identity)
    for record in view.sessions():
        for seq, identity in _pruned(view, record.number):
            if identity.startswith(name.lower()):
                return _described(engine, view, record.number, seq, identity)
    return None


def _pruned(view: View, number: int) -> Iterator[tuple[int, str]]:
    """Yield (seq, id) of the removed checkpoints on a timeline, newest first."""
    found = view.pruned_before(number, view.head(number).seq)
    while found is not None:
        yield found
        found = view.pruned_before(number, found[0] - 1)


def _described(
    engine: Engine, view: View, number: int, seq: int, identity: str
) -> PrunedCheckpoint:
    for event in view.remaining(number, seq + 1, view.head(number).seq):
        if event.kind == PRUNED:
            seqs = engine.plain(event.payload).get("seqs", {})
            for rule, removed in seqs.items():
                if seq in removed:
                    return PrunedCheckpoint(number, seq, identity, event.time, rule)
    return PrunedCheckpoint(number, seq, identity, None, None)
