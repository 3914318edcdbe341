"""The document at any seq: the nearest keyframe, and a bounded replay from there."""

from __future__ import annotations

from mulligan import codec
from mulligan.document.document import Document, LoadBytes
from mulligan.document.fold import EMPTY, fold
from mulligan.journal.protocol import View
from mulligan.model import Digest

KEYFRAME_EVERY = 512
"""Number of events after which a keyframe is due; this bounds every replay."""


def document_at(view: View, number: int, seq: int, load: LoadBytes) -> Document:
    """Return the document of a session as of ``seq``."""
    keyframe = view.keyframe(number, seq)
    if keyframe is None:
        return advance(view, number, Document(EMPTY, load), 0, seq)
    return advance(view, number, from_keyframe(keyframe[1], load), keyframe[0], seq)


def from_keyframe(digest: Digest, load: LoadBytes) -> Document:
    """Return the document stored in a keyframe."""
    return Document(codec.decode(load(digest)), load)


def advance(view: View, number: int, document: Document, seq: int, to: int) -> Document:
    """Return the document after the events ``seq + 1 .. to``."""
    for event in view.events(number, seq + 1, to):
        document = fold(document, event.kind, event.payload, event.seq)
    return document
