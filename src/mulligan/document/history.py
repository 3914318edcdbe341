"""The document at any seq: the nearest keyframe, and a bounded replay from there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mulligan import codec
from mulligan.document.document import Document, LoadBytes
from mulligan.document.fold import APPEND, EMPTY, STATE, fold, is_without_changes

if TYPE_CHECKING:
    from mulligan.journal.protocol import View
    from mulligan.model import Digest

KEYFRAME_EVERY = 512
"""Number of events after which a keyframe is due; this bounds every replay."""


def document_at(view: View, number: int, seq: int, load: LoadBytes) -> Document:
    """Return the document of a session as of ``seq``."""
    # A keyframe may be the parent's: a fork shares the past up to its origin.
    keyframe = view.keyframe(number, seq)
    if keyframe is None:
        return advance(view, number, Document(EMPTY, load), 0, seq)
    return advance(view, number, from_keyframe(keyframe[1], load), keyframe[0], seq)


def from_keyframe(digest: Digest, load: LoadBytes) -> Document:
    """Return the document stored in a keyframe."""
    return Document(codec.decode(load(digest)), load)


def advance(view: View, number: int, document: Document, seq: int, to: int) -> Document:
    """Return the document after the events ``seq + 1 .. to``.

    Appends in a row to the same list, as of a conversation, are made at once: each one alone would
    copy the nodes on the way to its end. The document is the same, since its shape depends on its
    content alone.
    """
    path: list[Any] | None = None
    items: list[Any] = []
    for event in view.events(number, seq + 1, to):
        if is_without_changes(event.kind, event.payload):
            continue
        is_append = event.kind == APPEND
        if path is not None and not (is_append and event.payload["path"] == path):
            document, path, items = document.extend((*STATE, *path), items), None, []
        if is_append:
            path = event.payload["path"]
            items += document.items(document.resolved(event.payload["values"]))
        else:
            document = fold(document, event.kind, event.payload, event.seq)
    return document if path is None else document.extend((*STATE, *path), items)
