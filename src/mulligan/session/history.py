"""Reading a session's timeline: its points, events, checkpoints and documents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path as OsPath
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.document.compare import same
from mulligan.document.document import Document
from mulligan.document.fold import STATE
from mulligan.errors import DamagedJournal, InvalidMark, MissingObject, UnknownPoint
from mulligan.model import Checkpoint, Event, Fold, Point, SessionRecord
from mulligan.timeline.checkpoints import event_at, read_checkpoint, read_checkpoints
from mulligan.timeline.labels import label_seq, label_seqs
from mulligan.timeline.losses import lost_objects, plain_with_losses
from mulligan.timeline.moments import fold_at
from mulligan.timeline.points import PointLike, Points
from mulligan.timeline.sessions import known_session

if TYPE_CHECKING:
    from mulligan.engine import Engine
    from mulligan.journal.protocol import View
    from mulligan.session.state_view import StateView
    from mulligan.session.walk import Step
    from mulligan.session.write.writer import Writer

PAGE_EVENTS = 256
"""How many events are read within one snapshot."""

POLL_SECONDS = (0.002, 0.05)
"""Seconds between two polls for new events: at first, and at most."""


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

    def head(self) -> Point:
        """Return the session and sequence number of the newest event."""
        with self._engine.read() as view:
            return Point(self._record.name, view.head(self._record.number).seq)

    def directory(self) -> OsPath | None:
        """Return the directory of the session's fork, or of its nearest ancestor that has one."""
        with self._engine.read() as view:
            record = self._record
            while (origin := record.origin) is not None:
                made = event_at(view, record.number, origin.seq + 1).payload
                if "workspace" in made:
                    from mulligan.workspace.entries import from_name  # few sessions are forks

                    return OsPath(os.fsdecode(from_name(made["workspace"])))
                record = view.session(origin.session)
        return None

    def point(self, point: PointLike) -> Point:
        """Return the session and sequence number that a point names."""
        with self._engine.read() as view:
            return self._points(view).find(point)

    def place(self, point: PointLike) -> Point:
        """Return the session and sequence number of a point, which may have been folded away."""
        with self._engine.read() as view:
            return Points(self._engine, view, self._record, allow_folded=True).find(point)

    def folds(self, first: int, last: int) -> list[Fold]:
        """Return the folds that took events of ``first..last`` on this timeline, oldest first."""
        with self._engine.read() as view:
            return view.folded(self._record.number, first, last)

    def labels(self) -> dict[str, Point]:
        """Return the labels with the checkpoints that they name, newest first."""
        with self._engine.read() as view:
            found = label_seqs(self._engine, view, self._record)
            return {label: self._points(view).find(label) for label in found}

    def checkpoints(
        self,
        since: PointLike | None = None,
        until: PointLike | None = None,
        kind: str | None = None,
        limit: int | None = None,
        *,
        reverse: bool = False,
    ) -> list[Checkpoint]:
        """Return the checkpoints after a point up to another, those before a fork included.

        Oldest first, or with ``reverse`` newest first; ``limit`` ends it. What lies beyond is not
        read.
        """
        number = self._record.number
        with self._engine.read() as view:
            points = Points(self._engine, view, self._record, allow_folded=True)
            first = 1 if since is None else points.find(since).seq + 1
            head = view.head(number)
            last = head.seq if until is None else points.find(until).seq
            # The chain of parents does not show whether the last one is missing.
            if view.checkpoint_before(number, head.seq) != head.checkpoint:
                raise DamagedJournal(f"The newest checkpoint of {self._record.name!r} is missing.")
            found = read_checkpoints(self._engine, view, number, first, last, reverse=reverse)
            return list(islice((c for c in found if kind is None or c.kind == kind), limit))

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

    def find(self, key: str) -> Checkpoint | None:
        """Return the checkpoint on the timeline that has the foreign key."""
        with self._engine.read() as view:
            seq = view.keyed(self._record.number, key)
            if seq is None:
                return None
            return read_checkpoint(self._engine, event_at(view, self._record.number, seq))

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint, unless a restore took it for safety.

        That one holds the state and the files from before the restore.
        """
        with self._engine.read() as view:
            head = view.head(self._record.number)
            if head.checkpoint is None:
                return None
            found = event_at(view, self._record.number, head.checkpoint[0])
            latest = read_checkpoint(self._engine, found)
        return None if latest.safety else latest

    def latest_of_state(self) -> Checkpoint | None:
        """Return the newest checkpoint as ``latest`` does, if the state has not changed since."""
        latest = self.latest()
        if latest is None:
            return None
        # The older one first: the newest is replayed from it, and shares what did not change.
        then = self.document_at(Point(self._record.name, latest.seq)).find(STATE)
        now = self._writer.document().find(STATE)
        return latest if now is then or same(now, then) else None

    def markable(self, point: PointLike) -> Checkpoint:
        """Return the checkpoint at or before a point, if it holds what was at the point."""
        from mulligan.timeline.undo import first_restore  # only marks need it

        place = self._own_point(point, "Mark")
        checkpoint = self.find_checkpoint(place)
        if self.folds(checkpoint.seq + 1, place.seq):
            raise InvalidMark(
                f"Events between the checkpoint #{checkpoint.seq} and #{place.seq} were folded "
                "away, so the checkpoint may hold something else.",
                hint="Nothing was marked. Name a checkpoint.",
            )
        if restored := first_restore(self.events(checkpoint, place, follow=False)):
            raise InvalidMark(
                f"No checkpoint holds what was at #{place.seq}: the restore #{restored.seq} came "
                f"after the checkpoint #{checkpoint.seq}.",
                hint="Nothing was marked. Name a checkpoint, or take one and mark that.",
            )
        return checkpoint

    def labelled(self, label: str) -> Checkpoint:
        """Return the checkpoint that a label names."""
        with self._engine.read() as view:
            seq = label_seq(self._engine, view, self._record, label)
        if seq is None:
            raise UnknownPoint(
                f"There is no label {label!r} on the timeline of session {self._record.name!r}.",
                hint="`mulligan label` lists the labels of a session.",
            )
        # By its number, not by the label, which another process may give to a newer checkpoint
        # meanwhile.
        return self.find_checkpoint(seq)

    def own_checkpoint(self, point: PointLike, verb: str) -> Checkpoint:
        """Return the checkpoint at or before a point of this timeline; others are refused."""
        return self.find_checkpoint(self._own_point(point, verb))

    def _own_point(self, point: PointLike, verb: str) -> Point:
        """Return a point of this timeline; one of another session is refused."""
        place = self.point(point)
        if place.session != self._record.name:
            raise UnknownPoint(
                f"#{place.seq} of {place.session!r} is not on the timeline of "
                f"{self._record.name!r}.",
                hint=f"{verb} it in the session {place.session!r}.",
            )
        return place

    def before(self, checkpoint: Checkpoint) -> Point:
        """Return the newest checkpoint before another that was not pruned, or the first event."""
        with self._engine.read() as view:
            number = known_session(view, checkpoint.session).number
            found = view.checkpoint_before(number, checkpoint.seq - 1)
        return Point(checkpoint.session, *(found or (1, None)))

    def checkpoint_at(self, seq: int) -> Checkpoint:
        """Return the checkpoint that an event of the session records."""
        event = self._writer.taken(seq)
        if event is None:
            with self._engine.read() as view:
                event = event_at(view, self._record.number, seq)
        return read_checkpoint(self._engine, event)

    def document_at(self, point: Point) -> Document:
        """Return the document as of a point."""
        with self._engine.read() as view:
            number = known_session(view, point.session).number
            return self._writer.document_at(view, number, point.seq)

    def view_at(self, point: PointLike) -> StateView:
        """Return the state as of a point, to be read by path."""
        from mulligan.session.state_view import StateView  # here and below: few commands need it

        with self._engine.pin(), self._engine.read() as view:
            place = self._points(view).find(point)
            record = known_session(view, place.session)
            document = self._writer.document_at(view, record.number, place.seq)
            return StateView(self._engine, record, view, place.seq, document)

    def walk(
        self,
        since: PointLike | None,
        until: PointLike | None,
        *,
        kind: str | None,
        limit: int | None,
        newest_first: bool,
    ) -> Iterator[Step]:
        """Yield the checkpoints after a point up to another, with their states."""
        from mulligan.session.walk import Walk

        first = 1 if since is None else self.place(since).seq + 1
        last = self.head().seq if until is None else self.place(until).seq
        steps = Walk(
            self._engine,
            self._record,
            first,
            last,
            kind=kind,
            limit=limit,
            newest_first=newest_first,
        )
        return iter(steps)

    def events(
        self, since: PointLike | None, until: PointLike | None, *, follow: bool
    ) -> Iterator[Event]:
        """Yield the events after a point up to another; with ``follow``, wait for new ones.

        Those that were folded away are left out; either point may be one of them. Raises
        ``StoreGone`` instead of waiting if the store was removed or replaced.
        """
        # Resolved once: a point like @latest would move while events are followed.
        seq = 0 if since is None else self.place(since).seq
        last = None if until is None else self.place(until).seq
        pause, longest = POLL_SECONDS
        while True:
            page, looked_at = self._page(seq + 1, last)
            yield from page
            if looked_at > seq:
                seq, pause = looked_at, POLL_SECONDS[0]
                continue
            if not follow or (last is not None and seq >= last):
                return
            # A deleted journal stays readable while it is open, but never gets a new event.
            self._engine.check_present()
            # Back off: an idle session should cost little, and a busy one show events at once.
            self._engine.clock.sleep(pause)
            pause = min(pause * 2, longest)

    def _page(self, first: int, last: int | None) -> tuple[list[Event], int]:
        """Return the next events from ``first`` on, and the seq up to which there are no others."""
        with self._engine.read() as view:
            number = self._record.number
            head = view.head(number).seq
            # A fold has nothing to read, so a page never ends inside one.
            fold = fold_at(view, number, first)
            start = fold.last + 1 if fold else first
            stop = min(head if last is None else last, head, start + PAGE_EVENTS - 1)
            # A page at a time: a snapshot that stays open keeps the journal from reusing its pages.
            events = list(view.remaining(number, first, stop))
        page = [msgspec.structs.replace(e, payload=self._plain(e.payload)) for e in events]
        return page, max(stop, first - 1)

    def _plain(self, payload: Any) -> Any:
        """Return the payload of an event; what a repair found lost must not hide the rest."""
        engine = self._engine
        try:
            return engine.plain(payload)
        except MissingObject:
            with engine.read() as view:
                if not lost_objects(view, engine.load):
                    raise  # no repair has named it yet
            return plain_with_losses(payload, engine.plain)

    def _points(self, view: View) -> Points:
        return Points(self._engine, view, self._record)
