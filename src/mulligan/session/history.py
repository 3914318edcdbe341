"""Reading a session's timeline: its points, events, checkpoints and documents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path as OsPath

import msgspec

from mulligan.document.document import Document
from mulligan.engine import Engine
from mulligan.errors import DamagedJournal, UnknownPoint
from mulligan.journal.protocol import View
from mulligan.model import Checkpoint, Event, Point, SessionRecord
from mulligan.session.write.writer import Writer
from mulligan.timeline.checkpoints import event_at, read_checkpoint, read_checkpoints
from mulligan.timeline.labels import label_seqs
from mulligan.timeline.points import PointLike, Points
from mulligan.timeline.sessions import known_session
from mulligan.workspace.entries import from_name

PAGE_EVENTS = 256
"""How many events are read within one snapshot."""

POLL_SECONDS = (0.002, 0.05)
"""How long to wait between looks for new events: at first, and at most."""


class History:
    """Reads the timeline of a session; writes nothing."""

    def __init__(self, engine: Engine, record: SessionRecord, writer: Writer) -> None:
        self._engine = engine
        self._record = record
        self._writer = writer

    def parent(self) -> Point | None:
        """Return where the session was forked from, if it was."""
        origin = self._record.origin
        if origin is None:
            return None
        with self._engine.read() as view:
            return Point(view.session(origin.session).name, origin.seq)

    def directory(self) -> OsPath | None:
        """Return the directory of the session's fork, or of its nearest ancestor that has one."""
        with self._engine.read() as view:
            record = self._record
            while (origin := record.origin) is not None:
                made = event_at(view, record.number, origin.seq + 1).payload
                if "workspace" in made:
                    return OsPath(os.fsdecode(from_name(made["workspace"])))
                record = view.session(origin.session)
        return None

    def point(self, point: PointLike) -> Point:
        """Return the session and sequence number that a point names."""
        with self._engine.read() as view:
            return self._points(view).find(point)

    def labels(self) -> dict[str, Point]:
        """Return the labels with the checkpoints that they name, newest first."""
        with self._engine.read() as view:
            found = label_seqs(self._engine, view, self._record)
            return {label: self._points(view).find(label) for label in found}

    def checkpoints(self, newest: int | None = None) -> list[Checkpoint]:
        """Return the checkpoints, oldest first, those before a fork included.

        ``newest`` limits them to the last ones.
        """
        with self._engine.read() as view:
            head = view.head(self._record.number)
            places = view.checkpoints(self._record.number, 1, head.seq)
            first = places[-newest][0] if newest and newest < len(places) else 1
            found = read_checkpoints(self._engine, view, self._record.number, first, head.seq)
        last = head.checkpoint and head.checkpoint[1]
        if last != (found[-1].id if found else None):
            raise DamagedJournal(f"The newest checkpoint of {self._record.name!r} is missing.")
        return found

    def find_checkpoint(self, point: PointLike) -> Checkpoint:
        """Return the checkpoint at or before a point."""
        with self._engine.read() as view:
            place = self._points(view).find(point)
            number = known_session(view, place.session).number
            found = view.checkpoint_before(number, place.seq)
            if found is None:
                raise UnknownPoint(
                    f"There is no checkpoint at or before #{place.seq} of {place.session!r}."
                )
            return read_checkpoint(self._engine, event_at(view, number, found[0]))

    def checkpoint_at(self, seq: int) -> Checkpoint:
        """Return the checkpoint that an event of the session records."""
        with self._engine.read() as view:
            event = event_at(view, self._record.number, seq)
        return read_checkpoint(self._engine, event)

    def document_at(self, point: Point) -> Document:
        """Return the document as of a point."""
        with self._engine.read() as view:
            number = known_session(view, point.session).number
            return self._writer.document_at(view, number, point.seq)

    def events(
        self, since: PointLike | None, until: PointLike | None, *, follow: bool
    ) -> Iterator[Event]:
        """Yield the events after a point up to another; with ``follow``, wait for new ones.

        Raises ``StoreGone`` instead of waiting if the store was removed or replaced.
        """
        seq = 0 if since is None else self.point(since).seq
        last = None if until is None else self.point(until).seq
        pause, longest = POLL_SECONDS
        while True:
            page = self._page(seq + 1, last)
            yield from page
            if page:
                seq, pause = page[-1].seq, POLL_SECONDS[0]
                continue
            if not follow or (last is not None and seq >= last):
                return
            # A deleted journal stays readable while it is open, but never gets a new event.
            self._engine.check_present()
            # Back off: an idle session should cost little, and a busy one show events at once.
            self._engine.clock.sleep(pause)
            pause = min(pause * 2, longest)

    def _page(self, first: int, last: int | None) -> list[Event]:
        with self._engine.read() as view:
            head = view.head(self._record.number).seq
            stop = min(head if last is None else last, head, first + PAGE_EVENTS - 1)
            events = list(view.events(self._record.number, first, stop))
        return [msgspec.structs.replace(e, payload=self._engine.plain(e.payload)) for e in events]

    def _points(self, view: View) -> Points:
        return Points(self._engine, view, self._record)
