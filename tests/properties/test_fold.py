"""After any prunes and folds, every point that stays is exactly what it was.

Random histories are played as in ``test_points_in_time``. Then checkpoints are pruned, events are
folded and garbage is collected, in any order. What remains has the state and the files of before,
or says that its files were pruned; what does not remain says that it was folded away.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from mulligan import Session, Store
from mulligan.engine import Engine
from mulligan.errors import FilesPruned, PointFolded
from mulligan.journal.protocol import View
from mulligan.model import SessionRecord
from mulligan.upkeep.space import fold as folding
from mulligan.upkeep.space.fold import fold_session
from mulligan.upkeep.space.gc import collect
from tests.properties.test_points_in_time import (
    SCRIPTS,
    Track,
    copied,
    played,
)

PRUNE = st.tuples(st.just("prune"), st.integers(0, 2), st.sets(st.integers(0, 7), min_size=1))
FOLD = st.tuples(st.just("fold"), st.integers(0, 2), st.integers(2, 8))
COLLECT = st.tuples(st.just("collect"), st.just(0), st.just(0))
UPKEEP = st.lists(st.one_of(PRUNE, PRUNE, FOLD, FOLD, COLLECT), min_size=2, max_size=6)


class History:
    """What is known of a track before upkeep, and what upkeep may have taken from it."""

    def __init__(self, track: Track, store: Store) -> None:
        self.track = track
        self.events = list(track.session.events())
        self.holders = _holders(track.session)
        with store._engine.read() as view:
            found = view.find(track.session.name)
        assert found is not None
        self.record: SessionRecord = found

    def check(self, engine: Engine, place: Path) -> None:
        with engine.read() as view:
            head = view.head(self.record.number).seq
            gone = {
                seq
                for fold in view.folded(self.record.number, 1, head)
                for seq in range(fold.first, fold.last + 1)
            }
            number = self.record.number
            pruned = {event.seq for event in self.events if _is_pruned(view, number, event.seq)}
        session = self.track.session
        assert [e.seq for e in session.events()] == [
            e.seq for e in self.events if e.seq not in gone
        ]
        for event in {event.time: event for event in self.events}.values():
            if event.seq in gone:
                with pytest.raises(PointFolded):
                    session.point(event.time)
            else:
                assert session.point(event.time).seq == event.seq
        for event, moment in zip(self.events, self.track.past, strict=True):
            self.check_point(event.seq, moment, gone, pruned, place)

    def check_point(
        self, seq: int, moment: Any, gone: set[int], pruned: set[int], place: Path
    ) -> None:
        session = self.track.session
        if seq in gone:
            with pytest.raises(PointFolded):
                session.state.at(seq).get()
            with pytest.raises(PointFolded):
                session.files.read(seq, "a")
            return
        assert session.state.at(seq).get() == moment.state, seq
        if self.holders[seq] in pruned:
            with pytest.raises(FilesPruned):
                session.internal.files_at(seq)
        else:
            assert copied(session, seq, place) == moment.files, seq


def _holders(session: Session) -> dict[int, int | None]:
    """Return the event that holds the files of each one."""
    found: dict[int, int | None] = {}
    newest = None
    for event in session.events():
        is_taken = event.kind == "checkpoint.created" and "workspace" in event.payload
        is_restored = "after" in (event.payload.get("files") or {})
        if is_taken or (event.kind == "restore.applied" and is_restored):
            newest = event.seq
        found[event.seq] = newest
    return found


def _is_pruned(view: View, number: int, seq: int) -> bool:
    found = view.pruned_before(number, seq)
    return found is not None and found[0] == seq


def prune(engine: Engine, record: SessionRecord, which: set[int]) -> None:
    """Prune some of a session's own checkpoints, but the newest of any session."""
    with engine.write() as txn:
        base = record.origin.seq if record.origin else 0
        newest = {txn.head(other.number).checkpoint for other in txn.sessions()}
        own = txn.checkpoints(record.number, base + 1, txn.head(record.number).seq)
        txn.prune(
            record.number,
            [one[0] for place, one in enumerate(own) if place in which and one not in newest],
        )


@given(SCRIPTS, UPKEEP)
def test_what_stays_is_what_it_was(script: list[Any], upkeep: list[Any]) -> None:
    with played(script) as (store, tracks, place):
        engine = store._engine
        histories = [History(track, store) for track in tracks]
        for what, which, rest in upkeep:
            history = histories[which % len(histories)]
            note(f"{what} {history.record.name} {rest}")
            if what == "prune":
                prune(engine, history.record, rest)
            elif what == "fold":
                before = len(history.events) * rest // 8
                with patch.object(folding, "SLICE_EVENTS", 3):
                    done = fold_session(engine, history.record, before, min_events=1)
                assert all(seq < before for seq in done.kept)
            else:
                collect(engine)
        for history in histories:
            history.check(engine, place)
        assert store.verify(full=True).problems == ()
