"""Labels: names of checkpoints that move.

A checkpoint keeps its label forever; the label itself refers to the newest checkpoint on the
timeline that has it. ``label.dropped`` records, outside the reach of restores, the seq of the
checkpoint that the label referred to. After that it refers to nothing until a later checkpoint gets
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mulligan.document.document import MISSING
from mulligan.document.fold import CONTROL, Change, event_change
from mulligan.document.history import document_at

if TYPE_CHECKING:
    from mulligan.engine import Engine
    from mulligan.journal.protocol import View
    from mulligan.model import SessionRecord

LABELS = "labels"
DROPPED = "label.dropped"


def drop_change(label: str, seq: int, checkpoint: str) -> Change:
    """Return the event that drops a label which refers to the checkpoint at ``seq``."""
    control = [[[LABELS, label], seq]]
    return event_change(DROPPED, control=control, label=label, checkpoint=checkpoint)


def label_seq(engine: Engine, view: View, session: SessionRecord, label: str) -> int | None:
    """Return the seq of the checkpoint that a label refers to; None if there is none."""
    passed: list[tuple[SessionRecord, int]] = []
    for part, until in _parts(view, session):
        passed.append((part, until))
        given = [seq for seq in view.labelled(part.number, label) if seq <= until]
        if given:
            # A drop in a fork also ends a label that an ancestor gave.
            dropped = [_dropped(engine, view, *place).get(label, 0) for place in passed]
            return max(given) if max(given) > max(dropped) else None
    return None


def label_seqs(engine: Engine, view: View, session: SessionRecord) -> dict[str, int]:
    """Return the seqs of the checkpoints that labels refer to on a timeline, newest first."""
    found: dict[str, int] = {}
    dropped: dict[str, int] = {}
    for part, until in _parts(view, session):
        for label, seq in view.labels(part.number):
            if seq <= until:
                found[label] = max(seq, found.get(label, 0))
    # To know what was dropped a document is folded, which a timeline without labels can do without.
    for part, until in _parts(view, session) if found else ():
        for label, seq in _dropped(engine, view, part, until).items():
            dropped[label] = max(seq, dropped.get(label, 0))
    kept = [(label, seq) for label, seq in found.items() if seq > dropped.get(label, 0)]
    return dict(sorted(kept, key=lambda item: item[1], reverse=True))


def _parts(view: View, session: SessionRecord) -> Iterator[tuple[SessionRecord, int]]:
    """Yield the sessions that make up a timeline, itself first, each with its last seq."""
    until = view.head(session.number).seq
    while True:
        yield session, until
        origin = session.origin
        if origin is None:
            return
        # A fork may start before its parent's own first event; it then has less of the older past.
        session, until = view.session(origin.session), min(until, origin.seq)


def _dropped(engine: Engine, view: View, session: SessionRecord, until: int) -> dict[str, int]:
    """Return the labels that were dropped in a session, and the seq each referred to."""
    document = document_at(view, session.number, until, engine.load)
    found = document.find((*CONTROL, LABELS))
    plain: dict[str, int] = {} if found is MISSING else document.plain(found)
    return plain
