"""The document at any seq: the nearest keyframe, and a bounded replay from there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mulligan import codec
from mulligan.document.document import Document, LoadBytes
from mulligan.document.fold import APPEND, EMPTY, STATE, fold, is_without_changes

if TYPE_CHECKING:
    from mulligan.journal.protocol import View
    from mulligan.model import Digest, Event

KEYFRAME_EVERY = 512
"""Number of events after which a keyframe is due; this bounds every replay."""


def document_at(view: View, number: int, seq: int, load: LoadBytes) -> Document:
    """Return the document of a session as of ``seq``."""
    start, document = nearest(view, number, seq, load)
    return advance(view, number, document, start, seq)


def documents_at(
    view: View, number: int, seqs: Collection[int], load: LoadBytes
) -> dict[int, Document]:
    """Return the documents as of several seqs with one replay, from the keyframe before the last.

    Those before that keyframe are left out.
    """
    start, document = nearest(view, number, max(seqs), load)
    stops = sorted(seq for seq in set(seqs) if seq >= start)
    return dict(zip(stops, replay(view, number, document, start, stops), strict=True))


def nearest(view: View, number: int, seq: int, load: LoadBytes) -> tuple[int, Document]:
    """Return the newest keyframe's seq at or before ``seq``, and its document."""
    # A keyframe may be the parent's: a fork shares the past up to its origin.
    keyframe = view.keyframe(number, seq)
    if keyframe is None:
        return 0, Document(EMPTY, load)
    return keyframe[0], from_keyframe(keyframe[1], load)


def from_keyframe(digest: Digest, load: LoadBytes) -> Document:
    """Return the document stored in a keyframe."""
    return Document(codec.decode(load(digest)), load)


def advance(view: View, number: int, document: Document, seq: int, to: int) -> Document:
    """Return the document after the events ``seq + 1 .. to``."""
    return next(replay(view, number, document, seq, [to]))


def replay(
    view: View, number: int, document: Document, seq: int, stops: Sequence[int]
) -> Iterator[Document]:
    """Yield the document as of each of the sorted ``stops``, which are at ``seq`` or after it."""
    events = iter(view.events(number, seq + 1, stops[-1]))
    pending = _Appends(document)
    for stop in stops:
        while seq < stop:
            event = next(events)
            pending.fold(event)
            seq = event.seq
        yield pending.flushed()


class _Appends:
    """A document to which events are applied, and appends to it that are not made yet.

    Appends in a row to the same list, as of a conversation, are made at once: each one alone would
    copy the nodes on the way to its end. The document is the same, since its shape depends on its
    content alone.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self._path: list[Any] | None = None
        self._items: list[Any] = []

    def fold(self, event: Event) -> None:
        """Apply the next event."""
        if is_without_changes(event.kind, event.payload):
            return
        if event.kind != APPEND:
            self._document = fold(self.flushed(), event.kind, event.payload, event.seq)
            return
        path, values = event.payload["path"], event.payload["values"]
        if path != self._path:
            self.flushed()
            self._path = path
        self._items += self._document.items(self._document.resolved(values))

    def flushed(self) -> Document:
        """Return the document with the appends so far."""
        if self._path is not None:
            self._document = self._document.extend((*STATE, *self._path), self._items)
            self._path, self._items = None, []
        return self._document
