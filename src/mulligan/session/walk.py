"""Walking over the checkpoints of a session with the state of each, a page at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from mulligan.document.history import KEYFRAME_EVERY, documents_at
from mulligan.model import Checkpoint, SessionRecord
from mulligan.session.state_view import StateView
from mulligan.timeline.checkpoints import read_checkpoints
from mulligan.timeline.sessions import check_exists

if TYPE_CHECKING:
    from mulligan.engine import Engine
    from mulligan.journal.protocol import View

Step = tuple[Checkpoint, StateView]


class Walk:
    """The checkpoints of ``first..last`` of a session, with their states.

    A page has the checkpoints after one keyframe: one snapshot and one replay. Nothing is held
    between two pages, so that writers and upkeep go on; what was removed meanwhile is left out.
    """

    def __init__(
        self,
        engine: Engine,
        record: SessionRecord,
        first: int,
        last: int,
        *,
        kind: str | None = None,
        limit: int | None = None,
        newest_first: bool = True,
    ) -> None:
        self._engine = engine
        self._record = record
        self._first, self._last = first, last
        self._kind = kind
        self._limit = last if limit is None else limit
        self._newest_first = newest_first

    def __iter__(self) -> Iterator[Step]:
        while self._first <= self._last and self._limit > 0:
            # Pinned from the look-up on: a keyframe must not be removed before it was read.
            with self._engine.pin(), self._engine.read() as view:
                check_exists(view, self._record)
                page = self._steps(view, *self._next_range(view))
            self._limit -= len(page)
            yield from page

    def _next_range(self, view: View) -> tuple[int, int]:
        """Return the first and last seq of the next page, and leave it out from now on."""
        if self._newest_first:
            last = (view.checkpoint_before(self._record.number, self._last) or (0, ""))[0]
            first = max(self._first, self._keyframe(view, last))
            self._last = first - 1
            return first, last
        first, last = self._first, min(self._last, self._first + KEYFRAME_EVERY - 1)
        # One replay must give the whole page, so it ends before the next keyframe.
        while (keyframe := self._keyframe(view, last)) > first:
            last = keyframe - 1
        self._first = last + 1
        return first, last

    def _keyframe(self, view: View, seq: int) -> int:
        found = view.keyframe(self._record.number, seq)
        return 0 if found is None else found[0]

    def _steps(self, view: View, first: int, last: int) -> list[Step]:
        record, engine = self._record, self._engine
        read = read_checkpoints(
            engine, view, record.number, first, last, reverse=self._newest_first
        )
        wanted = (c for c in read if self._kind is None or c.kind == self._kind)
        found = list(islice(wanted, self._limit))
        # Only for those that are wanted: a document per checkpoint costs more than its record.
        seqs = [checkpoint.seq for checkpoint in found]
        documents = documents_at(view, record.number, seqs, engine.load) if seqs else {}
        return [
            (checkpoint, StateView(engine, record, view, checkpoint.seq, documents[checkpoint.seq]))
            for checkpoint in found
        ]
