"""The state of a drill: rebuilt from keyframes and from the first event, and compared."""

from __future__ import annotations

from mulligan import codec
from mulligan.check.findings import Findings
from mulligan.check.graph import Graph, User
from mulligan.codec import Ref
from mulligan.document.compare import is_same_content
from mulligan.document.document import Document, settle_root
from mulligan.document.fold import EMPTY, fold
from mulligan.document.history import document_at, from_keyframe
from mulligan.engine import Engine
from mulligan.errors import MulliganError
from mulligan.journal.protocol import View
from mulligan.model import Digest, Event, Point, Problem
from mulligan.timeline.sessions import known_session

STATE = "state"
"""What a problem with the state is called."""

PAGE_EVENTS = 256
"""How many events are read within one snapshot: while one is open, the journal only grows."""

_ERRORS = (MulliganError, KeyError, TypeError, ValueError)
"""What folding a damaged event may raise."""


class StateDrill:
    """Rebuilds the document of one point in two ways."""

    def __init__(self, engine: Engine, point: Point) -> None:
        self._engine = engine
        self._point = point
        with engine.read() as view:
            self._number = known_session(view, point.session).number
        self._rebuilt: Digest | None = None
        self.problems: list[Problem] = []
        self.events = 0
        self.keyframes = 0

    def rebuild(self) -> None:
        """Rebuild it as a recovery does: nearest keyframe, then replay. Read every part of it."""
        seq = self._point.seq
        try:
            with self._engine.read() as view:
                document = document_at(view, self._number, seq, self._engine.load)
            findings = Findings()
            user = User(f"the state at #{seq}", self._number, seq)
            Graph(self._engine, findings, True).follow(document.root, user)
            self._rebuilt = _digest(document)
        except _ERRORS as error:
            self._report(f"#{seq}", f"it cannot be rebuilt from the nearest keyframe: {error}")
        else:
            self.problems += [Problem(f.what, f.where, f.detail) for f in findings.problems]

    def replay(self) -> None:
        """Rebuild it from the first event, and compare it with every keyframe and the result."""
        document, seq = self._beginning()
        try:
            while seq < self._point.seq:
                events, keyframes = self._page(seq + 1)
                for event in events:
                    document = fold(document, event.kind, event.payload, event.seq)
                    document = self._compared(document, event.seq, keyframes.get(event.seq))
                self.events += len(events)
                seq += len(events)
            replayed = _digest(document)
        except _ERRORS as error:
            self._report(f"#{seq + 1}", f"it cannot be replayed from the first event: {error}")
            return
        if self._rebuilt not in (None, replayed):
            self._report(
                f"#{self._point.seq}",
                "rebuilt from the nearest keyframe, it is not what replaying all events gives",
            )

    def _beginning(self) -> tuple[Document, int]:
        """Return the document from which all events are replayed, and its seq."""
        return Document(EMPTY, self._engine.load), 0

    def _page(self, first: int) -> tuple[list[Event], dict[int, Digest]]:
        """Return the next events and the keyframes among them."""
        last = min(first + PAGE_EVENTS - 1, self._point.seq)
        with self._engine.read() as view:
            events = list(view.events(self._number, first, last))
            return events, _keyframes(view, self._number, first, last)

    def _compared(self, document: Document, seq: int, keyframe: Digest | None) -> Document:
        """Compare a document with the keyframe at its seq, and continue with the correct one."""
        if keyframe is None:
            return document
        self.keyframes += 1
        if not self._is_equal(document, keyframe):
            self._report(f"keyframe #{seq}", "it is not the state at that event")
            return document
        # Equal digests are equal documents. The stored one loads its parts when they are needed,
        # so that a long replay does not hold everything that was ever written in memory.
        return from_keyframe(keyframe, self._engine.load)

    def _is_equal(self, document: Document, keyframe: Digest) -> bool:
        """Whether a stored document is the one at hand, by digest or by content.

        The content may be divided into other objects: after a purge, or by an earlier version.
        """
        if _digest(document) == keyframe:
            return True
        return is_same_content(document, document.root, Ref(keyframe))

    def _report(self, where: str, detail: str) -> None:
        self.problems.append(Problem(STATE, where, detail))


def _keyframes(view: View, number: int, first: int, last: int) -> dict[int, Digest]:
    found: dict[int, Digest] = {}
    keyframe = view.keyframe(number, last)
    while keyframe is not None and keyframe[0] >= first:
        found[keyframe[0]] = keyframe[1]
        keyframe = view.keyframe(number, keyframe[0] - 1)
    return found


def _digest(document: Document) -> Digest:
    return settle_root(document.root, codec.value_digest)
