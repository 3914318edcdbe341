"""The events that make up the document: how each is encoded, and its effect when replayed.

The document has up to five parts: ``state``, which belongs to the user; ``undo`` and ``redo``, the
seqs of the restores that can be undone and redone; ``pending``, a restore of files under way; and
``control``, what supervision and recovery must remember across restores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mulligan import codec
from mulligan.document import nodes
from mulligan.document.document import EMBED_LIMIT, MISSING, Document, Put, settle
from mulligan.model import NewEvent, Path

STATE: Path = ("state",)
PENDING: Path = ("pending",)
CONTROL: Path = ("control",)
MARKS: Path = (*CONTROL, "marks")
LOST: Path = (*CONTROL, "lost")

SET = "state.set"
APPEND = "state.append"
DELETE = "state.delete"
RESTORE_BEGUN = "restore.begun"
RESTORED = "restore.applied"
CREATED = "session.created"
FORKED = "session.forked"
CHECKPOINT = "checkpoint.created"
REFRESHED = "agent.refreshed"
PURGED = "upkeep.purged"
"""A purge changed the history of the store; see ``mulligan.upkeep.purge``."""

EMPTY: dict[str, Any] = {"state": {}, "undo": [], "redo": []}

Change = tuple[str, dict[str, Any]]
"""An event before it is recorded: its kind and its payload of frozen values."""


def new_event(change: Change, put: Put) -> NewEvent:
    """Return the event of a change; large values of its payload become objects."""
    kind, payload = change
    # Encoded as a whole first: most payloads are small, and then none of their values is large.
    encoded = codec.encode(payload)
    if len(encoded) <= EMBED_LIMIT:
        return NewEvent(kind, encoded, codec.decode(encoded))
    # Every replay reads the path, so it stays inside the event whatever its length.
    parts = {
        key: value if key == "path" else msgspec.Raw(settle(value, put))
        for key, value in payload.items()
    }
    encoded = codec.encode(parts)
    return NewEvent(kind, encoded, codec.decode(encoded))


def event_change(
    kind: str,
    changes: Sequence[list[Any]] = (),
    control: Sequence[list[Any]] = (),
    **facts: Any,
) -> Change:
    """Return an event that records what happened and sets or deletes values at paths.

    Each change is ``[path, value]``, or ``[path]`` to delete; values are frozen. ``changes`` apply
    to the state, ``control`` to what no restore touches.
    """
    payload = dict(facts)
    if changes:
        payload["changes"] = nodes.build_list(list(changes))
    if control:
        payload["control"] = nodes.build_list(list(control))
    return kind, payload


def small_event(kind: str, payload: dict[str, Any]) -> NewEvent:
    """Return an event whose payload has no large values."""
    return NewEvent(kind, codec.encode(payload), payload)


def fold(document: Document, kind: str, payload: Any, seq: int) -> Document:
    """Return the document after the event with this kind, payload and seq."""
    if kind in (SET, APPEND, DELETE):
        state = _changed(document.with_root(document.root["state"]), kind, payload)
        return document.with_root({**document.root, "state": state.root})
    if kind == RESTORE_BEGUN:
        return document.set(PENDING, payload)
    if kind == RESTORED:
        # Only a restore of files ends a pending one; a restore of state alone leaves it pending.
        if "files" in payload and document.find(PENDING) is not MISSING:
            document = document.delete(PENDING)
        return _walked(_changed_by(document, payload["changes"]), payload["mode"], seq)
    if kind == FORKED:
        if document.find(PENDING) is not MISSING:
            document = document.delete(PENDING)  # it belongs to the parent session
        return _uncontrolled(document.set(("undo",), []).set(("redo",), []))
    # Any other event carries its own changes, also one of a kind that this version does not know.
    if "changes" in payload:
        document = _changed_by(document, payload["changes"])
    if "control" in payload:
        document = _changed_by(document, payload["control"], CONTROL)
    return document


def is_without_changes(kind: str, payload: Any) -> bool:
    """Whether an event leaves the document as it is, as most checkpoints do."""
    return kind == CHECKPOINT and "changes" not in payload and "control" not in payload


def _changed(state: Document, kind: str, payload: Any) -> Document:
    path = tuple(payload["path"])
    if kind == SET:
        return state.set(path, payload["value"])
    if kind == APPEND:
        return state.extend(path, state.items(state.resolved(payload["values"])))
    return state.delete(path)


def _changed_by(document: Document, changes: Any, above: Path = STATE) -> Document:
    for change in document.items(document.resolved(changes)):
        path, *value = document.resolved(change)
        place = (*above, *document.resolved(path))
        document = document.set(place, value[0]) if value else document.delete(place)
    return document


def _uncontrolled(document: Document) -> Document:
    """Return the document of a fork: no process runs it yet, and it keeps its marks."""
    marks = document.find(MARKS)
    if document.find(CONTROL) is MISSING:
        return document
    return document.set(CONTROL, {} if marks is MISSING else {"marks": marks})


def _walked(document: Document, mode: str, seq: int) -> Document:
    """Return the document with the restore pushed where its undo or redo will look for it."""
    if mode == "restore":
        # A new restore invalidates what could be redone, as in an editor.
        return document.extend(("undo",), [seq]).set(("redo",), [])
    source, target = ("undo", "redo") if mode == "undo" else ("redo", "undo")
    return document.delete((source, -1)).extend((target,), [seq])
