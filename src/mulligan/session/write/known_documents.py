"""Documents of the past that a handle keeps, so that points near each other are not all replayed.

They stay valid: history is never rewritten. Only a purge changes it, and then all are forgotten.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from mulligan.document.history import KEYFRAME_EVERY, advance, document_at, documents_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mulligan.document.document import Document, LoadBytes
    from mulligan.journal.protocol import View

NEAR_EVENTS = 64
"""Up to this distance, events are replayed on a known document instead of on a keyframe."""

MAX_KNOWN_DOCUMENTS = 8
"""How many documents are kept of those that were asked for or written last."""

MAX_STRETCHES = 4
"""How many stretches between two keyframes are kept, with the documents of their checkpoints.

They share what is equal, so a stretch takes about as much memory as its events.
"""

STOP_EVERY = NEAR_EVENTS // 2
"""Where a stretch has few checkpoints, a document is kept at this distance, in events."""

_Place = tuple[int, int]


class KnownDocuments:
    """The documents by session number and seq; the caller holds the handle's lock."""

    def __init__(self, load: LoadBytes) -> None:
        self._load = load
        self._recent: dict[_Place, Document] = {}
        self._stretches: deque[dict[_Place, Document]] = deque(maxlen=MAX_STRETCHES)

    def __len__(self) -> int:
        return len(self._recent) + sum(map(len, self._stretches))

    def clear(self) -> None:
        """Forget all."""
        self._recent.clear()
        self._stretches.clear()

    def add(self, number: int, seq: int, document: Document) -> None:
        """Keep a document, in place of the one that was used least recently."""
        # Removed and added again: the first entry, which is dropped next, is the oldest.
        self._recent.pop((number, seq), None)
        self._recent[number, seq] = document
        if len(self._recent) > MAX_KNOWN_DOCUMENTS:
            del self._recent[next(iter(self._recent))]

    def at(self, view: View, number: int, seq: int) -> Document:
        """Return the document as of ``seq``: kept, or replayed."""
        found = self._get((number, seq))
        if found is None:
            found = self.replayed(view, number, seq)
        self.add(number, seq, found)
        return found

    def replayed(self, view: View, number: int, seq: int) -> Document:
        """Return the document as of ``seq``, replayed from a kept one if that is quicker."""
        known = [at for session, at in self._places() if session == number]
        before = max((at for at in known if seq - NEAR_EVENTS <= at <= seq), default=None)
        nearest = None if before is None else self._get((number, before))
        if before is not None and nearest and not view.folded(number, before + 1, seq):
            return advance(view, number, nearest, before, seq)
        # A second point of the same stretch: more of them will follow, as in a listing.
        if any(abs(at - seq) <= KEYFRAME_EVERY for at in known):
            return self._stretch(view, number, seq)
        return document_at(view, number, seq, self._load)

    def _stretch(self, view: View, number: int, seq: int) -> Document:
        """Replay from the keyframe, and keep the documents of the checkpoints on the way."""
        keyframe = view.keyframe(number, seq)
        start = 0 if keyframe is None else keyframe[0]
        stops = {*range(start, seq, STOP_EVERY), seq}
        stops.update(at for at, _ in view.checkpoints(number, start + 1, seq))
        found = documents_at(view, number, stops, self._load)
        self._stretches.append({(number, at): document for at, document in found.items()})
        return found[seq]

    def _get(self, place: _Place) -> Document | None:
        if (found := self._recent.get(place)) is not None:
            return found
        for stretch in self._stretches:
            if (found := stretch.get(place)) is not None:
                return found
        return None

    def _places(self) -> Iterator[_Place]:
        yield from self._recent
        for stretch in self._stretches:
            yield from stretch
