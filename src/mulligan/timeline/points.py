"""Points: every way of naming a place on a timeline, and finding it.

A point is a checkpoint id or a unique prefix of one, a label (the newest checkpoint that was given
it), ``@latest``, any of these with ``~N`` (N checkpoints earlier), ``#SEQ``, or a time: ISO 8601,
``10m ago``, ``36 minutes ago``, or the clock time ``11:26`` (see ``timeline.times``). ``@latest``
and ``~N`` skip safety checkpoints, so that a restore to ``@latest`` can be repeated. ``@good``
and ``@bad`` are the latest checkpoints that were marked so, ``@good~1`` the good one before that.
With ``SESSION:`` in front it is looked up in that session.
"""

from __future__ import annotations

import re
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

from mulligan.document.history import document_at
from mulligan.errors import (
    AmbiguousPoint,
    CheckpointPruned,
    DamagedJournal,
    PointFolded,
    UnknownPoint,
    UnknownSession,
)
from mulligan.model import ID_SIZE, Checkpoint, Event, Fold, Point, SessionRecord
from mulligan.timeline.checkpoints import event_at, is_safety, read_checkpoint
from mulligan.timeline.labels import label_seq
from mulligan.timeline.marks import marked_before
from mulligan.timeline.moments import fold_at, seq_at, time_at
from mulligan.timeline.pruned import find_pruned
from mulligan.timeline.sessions import known_session
from mulligan.timeline.times import aware, parse_ago, parse_clock, parse_iso, shown

if TYPE_CHECKING:
    from mulligan.engine import Engine
    from mulligan.journal.protocol import View

PointLike = Point | Checkpoint | Event | str | int | datetime
"""Everything that can be passed as a point."""

MIN_PREFIX = 4
"""The length of the shortest prefix of a checkpoint id that is looked up."""

_DIGITS = 20
_HEX = rf"[0-9a-fA-F]{{{MIN_PREFIX},{ID_SIZE * 2}}}"
_SHORT = rf"[0-9a-fA-F]{{1,{MIN_PREFIX - 1}}}"
_TIME_START = r"\d*$|\d{4}-\d"
_SHORT_HINT = f"An id can be cut to {MIN_PREFIX} digits, not shorter; an event is named #SEQ."
_FOLDED_HINT = (
    "If it was a checkpoint, retention removed it, and its event was folded away. `mulligan log` "
    "lists those that remain."
)
_BACK = rf"(.+)~(\d{{1,{_DIGITS}}})"
_MARKED = rf"@(good|bad)((?:~\d{{1,{_DIGITS}}})*)"


class Points:
    """Finds points on the timeline of a session within one snapshot of the journal.

    A place whose event was folded away is found only with ``allow_folded``: there is no state
    there, but events that remain can be counted from it.
    """

    def __init__(
        self, engine: Engine, view: View, session: SessionRecord, *, allow_folded: bool = False
    ) -> None:
        self._engine = engine
        self._allow_folded = allow_folded
        self._view = view
        self._session = session
        self._head = view.head(session.number)

    def find(self, point: PointLike) -> Point:
        """Return the place.

        Raises ``UnknownPoint`` or ``AmbiguousPoint`` with the candidates, and ``PointFolded`` with
        what remains near it.
        """
        if isinstance(point, Point):
            return self._existing(point)
        if isinstance(point, Checkpoint):
            return self._existing(Point(point.session, point.seq, point.id))
        if isinstance(point, Event):
            return self._existing(Point(point.session, point.seq))
        if isinstance(point, datetime):
            return self._at_time(point, point.isoformat())
        if isinstance(point, int) and not isinstance(point, bool):
            return self._at_seq(point)
        if isinstance(point, str):
            return self._parse(_valid(point.strip()))
        raise UnknownPoint(
            f"A point is a checkpoint, an event, a text, a number or a time, not {point!r}.",
            hint='Name one: "@latest", a label, an id, 12 for #12, a datetime.',
        )

    def _existing(self, point: Point) -> Point:
        """Return the place if its session and event exist."""
        record = self._view.find(point.session)
        # By its id if the session was deleted since: another one may have its name now.
        if point.checkpoint and not (record and self._has(record, point)):
            if (found := self._by_id(point.checkpoint)) is not None:
                return found
            record = None
        if record is None or not self._may_name(record, point.seq):
            raise UnknownSession(f"There is no session {point.session!r}.")
        self._of(record)._at_seq(point.seq)
        return point

    def _has(self, record: SessionRecord, point: Point) -> bool:
        """Whether a checkpoint is or was at its place, as far as that is still known."""
        number, seq, place = record.number, point.seq, (point.seq, point.checkpoint)
        if place in self._view.checkpoints(number, seq, seq):
            return True
        if place == self._view.pruned_before(number, seq):
            return True
        return fold_at(self._view, number, seq) is not None

    def _may_name(self, record: SessionRecord, seq: int) -> bool:
        """Whether a place may be named: one of a deleted session only if it is on this timeline."""
        if record.deleted is None:
            return True
        return self._owner(record, seq) == self._owner(self._session, seq)

    def _owner(self, record: SessionRecord, seq: int) -> int:
        while record.origin is not None and seq <= record.origin.seq:
            record = self._view.session(record.origin.session)
        return record.number

    def _of(self, session: SessionRecord) -> Points:
        return Points(self._engine, self._view, session, allow_folded=self._allow_folded)

    def _parse(self, text: str) -> Point:
        # The common ones first: compiling a pattern takes longer than finding them.
        if text == "@latest":
            return self._latest()
        if text.startswith("@") and (marked := re.fullmatch(_MARKED, text)):
            return self._marked(marked[1], sum(map(int, marked[2].split("~")[1:])))
        if "~" in text and (back := re.fullmatch(_BACK, text)):
            return self._back(self._parse(back[1]), int(back[2]), text)
        if text.startswith("#"):
            return self._at_number(text)
        # Labels come first: users choose them, so one that looks like an id or a time is meant.
        if labelled := self._labelled(text):
            return labelled
        # A session before a clock time: in ``11:26``, ``11`` may be the name of a session.
        for attempt in (self._by_id, self._timed, self._elsewhere, self._clock):
            if found := attempt(text):
                return found
        self._refuse_pruned(text)
        raise UnknownPoint(
            f"{text!r} names no point on the timeline of session {self._session.name!r}"
            f"{self._known()}",
            hint=self._advice(text),
        )

    def _refuse_pruned(self, text: str) -> None:
        """Raise ``CheckpointPruned`` if a text names a checkpoint that retention removed."""
        found = find_pruned(self._engine, self._view, self._session.number, text)
        if found is None or (len(text) < MIN_PREFIX and found.id.startswith(text)):
            return
        session = self._view.session(found.session)
        when = "" if found.removed is None else f" at {shown(found.removed)}"
        rule = "" if found.rule is None else f" (rule {found.rule!r})"
        raise CheckpointPruned(
            f"Checkpoint {found.id[:12]} at #{found.seq} of session {session.name!r} was removed "
            f"by retention{when}{rule}. Its state is still there, as #{found.seq}, its files are "
            f"not; {self._near(session, found.seq)}"
        )

    def _near(self, session: SessionRecord, seq: int) -> str:
        number, last = session.number, self._view.head(session.number).seq
        before = self._view.checkpoint_before(number, seq)
        after = next(iter(self._view.checkpoints(number, seq, last)), None)
        near = [(session, found[0]) for found in (before, after) if found is not None]
        return f"the nearest checkpoints are:{self._listing(near)}"

    def _advice(self, text: str) -> str | None:
        """Return a hint for a text that names no point; None for the usual one."""
        name, colon, _ = text.partition(":")
        if colon and not re.match(_TIME_START, name) and self._view.find(name) is None:
            return f"There is no session {name!r}; `mulligan status` lists the sessions."
        if re.fullmatch(_SHORT, text):
            return _SHORT_HINT
        # Of what was folded away, no id is known any more.
        is_folded = bool(self._view.folded(self._session.number, 1, self._head.seq))
        return _FOLDED_HINT if is_folded and re.fullmatch(_HEX, text) else None

    def _at_number(self, text: str) -> Point:
        if not text[1:].isdecimal() or len(text) > _DIGITS:
            raise UnknownPoint(f"{text!r} is not a sequence number; write for example #12.")
        return self._at_seq(int(text[1:]))

    def _at_seq(self, seq: int) -> Point:
        if not 1 <= seq <= self._head.seq:
            raise UnknownPoint(
                f"Session {self._session.name!r} has no event #{seq}, only {self._range()}."
            )
        fold = None if self._allow_folded else fold_at(self._view, self._session.number, seq)
        if fold is not None:
            raise self._folded(f"Event #{seq} of session {self._session.name!r} was", fold)
        return Point(self._session.name, seq)

    def _folded(self, what: str, fold: Fold) -> PointFolded:
        """Return the error for a point inside a fold; it names what remains around it."""
        number, last = self._session.number, self._head.seq
        # The two always remain: folds do not touch, and take neither the first event nor the last.
        ends = f"#{fold.first - 1} and #{fold.last + 1}"
        before = self._view.checkpoint_before(number, fold.first - 1)
        after = next(iter(self._view.checkpoints(number, fold.last + 1, last)), None)
        near = [(self._session, found[0]) for found in (before, after) if found is not None]
        listed = f"; the nearest checkpoints are:{self._listing(near)}" if near else "."
        return PointFolded(
            f"{what} folded away with #{fold.first} to #{fold.last}. The nearest events that "
            f"remain are {ends}{listed}"
        )

    def _latest(self) -> Point:
        found = self._taken_before(self._session.number, self._head.seq)
        if found is None:
            raise UnknownPoint(
                f"Session {self._session.name!r} has no checkpoint yet.",
                hint="Take one with `mulligan checkpoint`, or name an event with #SEQ.",
            )
        return Point(self._session.name, *found)

    def _marked(self, verdict: str, steps: int) -> Point:
        """Return the newest checkpoint with a verdict, or the Nth one before it."""
        number, seq = self._session.number, self._head.seq
        document = document_at(self._view, number, seq, self._engine.load)
        places = list(islice(marked_before(self._view, number, seq, document, verdict), steps + 1))
        if len(places) <= steps:
            known = ("no checkpoint", "only one checkpoint", f"only {len(places)} checkpoints")
            said = known[min(len(places), 2)]
            raise UnknownPoint(
                f"Session {self._session.name!r} has {said} marked {verdict}.",
                hint=f"Mark one with `mulligan mark POINT {verdict}`.",
            )
        return Point(self._session.name, *places[steps])

    def _labelled(self, label: str) -> Point | None:
        """Return the checkpoint that a label names on this timeline, including the parents."""
        seq = label_seq(self._engine, self._view, self._session, label)
        return None if seq is None else self._checkpoint(self._session, seq)

    def _back(self, point: Point, steps: int, text: str) -> Point:
        session = known_session(self._view, point.session)
        place: tuple[int, str | None] | None = (point.seq, point.checkpoint)
        for _ in range(steps):
            place = self._taken_before(session.number, place[0] - 1) if place else None
        if place is None:
            raise UnknownPoint(f"{text!r} goes back past the first checkpoint{self._known()}")
        return Point(point.session, *place)

    def _taken_before(self, number: int, seq: int) -> tuple[int, str] | None:
        """Return the newest checkpoint at or before ``seq`` that is not a safety checkpoint."""
        found = self._view.checkpoint_before(number, seq)
        while found is not None and is_safety(event_at(self._view, number, found[0])):
            found = self._view.checkpoint_before(number, found[0] - 1)
        return found

    def _by_id(self, text: str) -> Point | None:
        if not re.fullmatch(_HEX, text):
            return None
        found = [
            (identity, number, seq)
            for identity, number, seq in self._view.checkpoints_by_id(text)
            if self._may_name(self._view.session(number), seq)
        ]
        if len(found) > 1:
            places = [(self._view.session(number), seq) for _, number, seq in found]
            raise self._ambiguous(f"The prefix {text!r}", places)
        return self._place(*found[0]) if found else None

    def _place(self, identity: str, number: int, seq: int) -> Point:
        """Return the place of a checkpoint, on this session's timeline if it is on it."""
        on_this = (seq, identity) in self._view.checkpoints(self._session.number, seq, seq)
        name = self._session.name if on_this else self._view.session(number).name
        return Point(name, seq, identity)

    def _timed(self, text: str) -> Point | None:
        moment = parse_ago(text, self._engine.clock.now()) or parse_iso(text)
        return None if moment is None else self._at_time(moment, text)

    def _clock(self, text: str) -> Point | None:
        moment = parse_clock(text, self._engine.clock.now())
        return None if moment is None else self._at_time(moment, text)

    def _at_time(self, moment: datetime, text: str) -> Point:
        """Return the last event at or before a time; a time without an offset is local."""
        number, name = self._session.number, self._session.name
        seq = seq_at(self._view, number, aware(moment))
        if seq is None:
            began = shown(time_at(self._view, number, 1))
            raise UnknownPoint(f"{text!r} is before session {name!r} began at {began}.")
        fold = None if self._allow_folded else fold_at(self._view, number, seq)
        if fold is not None:
            raise self._folded(f"The last event of session {name!r} at {text!r} was", fold)
        return Point(name, seq)

    def _elsewhere(self, text: str) -> Point | None:
        name, colon, rest = text.partition(":")
        session = self._view.find(name) if colon and rest else None
        is_there = session is not None and session.deleted is None
        return self._of(session).find(rest) if session and is_there else None

    def _checkpoint(self, session: SessionRecord, seq: int) -> Point:
        found = self._view.checkpoints(session.number, seq, seq)
        if not found:  # an id or a label leads to it
            what = f"Checkpoint #{seq} of {session.name!r}"
            raise DamagedJournal(f"{what} is missing in the index of checkpoints.")
        return Point(session.name, *found[0])

    def _range(self) -> str:
        last = self._head.seq
        return "event #1" if last == 1 else f"events #1 to #{last}"

    def _known(self) -> str:
        recent = self._view.checkpoint_before(self._session.number, self._head.seq)
        if recent is None:
            return f", which has {self._range()} and no checkpoint."
        places = self._view.checkpoints(self._session.number, 1, self._head.seq)[-5:]
        return "; the latest checkpoints are:" + self._listing(
            [(self._session, seq) for seq, _ in reversed(places)]
        )

    def _ambiguous(self, what: str, places: list[tuple[SessionRecord, int]]) -> AmbiguousPoint:
        return AmbiguousPoint(
            f"{what} names {len(places)} checkpoints:{self._listing(places)}",
            hint="Use one of the ids of the candidates.",
        )

    def _listing(self, places: list[tuple[SessionRecord, int]]) -> str:
        return "".join(f"\n  {self._describe(*place)}" for place in places[:10])

    def _describe(self, session: SessionRecord, seq: int) -> str:
        found = read_checkpoint(self._engine, event_at(self._view, session.number, seq))
        label = found.label
        if label and label_seq(self._engine, self._view, session, label) != seq:
            label = f"(was {label})"
        words = [found.id[:12], f"{session.name} #{seq}", shown(found.time)]
        return "  ".join(words + [word for word in (found.kind, label, found.note) if word])


def _valid(text: str) -> str:
    """Return a text that can be looked up in the journal."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnknownPoint(
            f"{text!r} is not valid Unicode, so it names no point.",
            hint="Arguments are read in the encoding of the locale; set a UTF-8 one: C.UTF-8.",
        ) from error
    return text
