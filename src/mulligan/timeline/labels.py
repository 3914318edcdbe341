"""Labels: names of checkpoints that move.

A checkpoint keeps the label that it was given for good; the label itself names the newest one on
the timeline that was given it. ``label.dropped`` notes, where no restore forgets it, the seq of the
checkpoint that the label named: it names nothing until a later checkpoint is given it.
"""

from __future__ import annotations

from collections.abc import Iterator

from mulligan.document.document import MISSING
from mulligan.document.fold import CONTROL, Change, event_change
from mulligan.document.history import document_at
from mulligan.engine import Engine
from mulligan.journal.protocol import View
from mulligan.model import SessionRecord

LABELS = "labels"
DROPPED = "label.dropped"


def drop_change(label: str, seq: int, checkpoint: str) -> Change:
    """Return the event that drops a label which names the checkpoint at ``seq``."""
    control = [[[LABELS, label], seq]]
    return event_change(DROPPED, control=control, label=label, checkpoint=checkpoint)


def label_seq(engine: Engine, view: View, session: SessionRecord, label: str) -> int | None:
    """Return the seq of the checkpoint that a label names; None if it names none."""
    passed: list[tuple[SessionRecord, int]] = []
    for part, until in _parts(view, session):
        passed.append((part, until))
        given = [seq for seq in view.labelled(part.number, label) if seq <= until]
        if given:
            dropped = [_dropped(engine, view, *place).get(label, 0) for place in passed]
            return max(given) if max(given) > max(dropped) else None
    return None


def label_seqs(engine: Engine, view: View, session: SessionRecord) -> dict[str, int]:
    """Return the seqs of the checkpoints that labels name on a timeline, newest first."""
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
    """Yield the sessions that a timeline is made of, itself first, and up to which seq each is."""
    until = view.head(session.number).seq
    while True:
        yield session, until
        origin = session.origin
        if origin is None:
            return
        # A fork may begin before its parent did: then it has less of the parent's own past.
        session, until = view.session(origin.session), min(until, origin.seq)


def _dropped(engine: Engine, view: View, session: SessionRecord, until: int) -> dict[str, int]:
    """Return the labels that were dropped in a session, and where each was then."""
    document = document_at(view, session.number, until, engine.load)
    found = document.find((*CONTROL, LABELS))
    plain: dict[str, int] = {} if found is MISSING else document.plain(found)
    return plain
