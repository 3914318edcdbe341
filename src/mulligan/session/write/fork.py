"""Forks: a new session that continues from a point of another one.

Up to that point, it shares its parent's past and the verdicts on it. A mark is newer than its
checkpoint, often newer than the point, so the fork copies the marks as they are when it is made.
Later marks stay in the session in which they are made. So it is with the effects on the outside
world: the fork knows those of its parent as they are when it is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from mulligan.document import nodes
from mulligan.document.compare import same
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import (
    FORKED,
    MARKS,
    Change,
    event_change,
    new_event,
    small_event,
)
from mulligan.document.history import document_at
from mulligan.engine import Engine
from mulligan.errors import KeyTaken, SessionExists
from mulligan.journal.protocol import Txn, View
from mulligan.model import Digest, ForkOrigin, NewEvent, ObjectKind, Point, SessionRecord
from mulligan.session.names import MAX_NAME
from mulligan.session.write.ledger import inherited_change, ledger_of
from mulligan.session.write.writer import Writer
from mulligan.timeline.sessions import known_session

INHERITED = "marks.inherited"

DocumentAt = Callable[[int, int], Document]
"""Returns the document of a session, by its number, as of a seq."""


def make_fork(
    engine: Engine,
    place: Point,
    name: str | None,
    actor: str,
    directory: Path | None = None,
    token: str = "",
    *,
    by: Writer | None = None,
    key: str | None = None,
) -> SessionRecord:
    """Make a session that continues from a place, in one transaction.

    ``token`` names the directory that was made for it; see
    ``mulligan.session.write.fork_directory``. ``by`` is the writer of the session that is forked;
    the place may be one that it shares with the session that it was forked from itself. ``key`` is
    the foreign key of the new session.
    """
    bundle = engine.bundle()

    def put(data: bytes) -> Digest:
        return bundle.put(ObjectKind.VALUE, data)

    # The handle before the journal, as in every write: its documents are looked up below.
    exclusive = nullcontext() if by is None else by.exclusive()
    with engine.pin(), exclusive, engine.write(bundle) as txn:
        parent = known_session(txn, place.session)
        now = engine.clock.now()
        # Under the write lock, so that a free name stays free until the commit.
        chosen = name or free_name(txn, place.session)
        record = txn.create(chosen, now, ForkOrigin(parent.number, place.seq), key)
        new_events = [_forked(place, chosen, directory, token, key)]
        at = _documents(engine, txn, by)
        # Read in the transaction: a mark that is made at the same time is either copied, or later
        # than the fork.
        if marks := _later_marks(txn, parent.number, place.seq, at):
            new_events.append(new_event(event_change(INHERITED, control=marks), put))
        if effects := _inherited_effects(txn, parent, by, place.seq, at):
            new_events.append(new_event(effects, put))
        txn.append(record.number, new_events, actor=actor, epoch=0, time=now)
    return record


def refuse_taken(engine: Engine, name: str | None, key: str | None = None) -> None:
    """Refuse the name or the key of an existing session before files are written."""
    with engine.read() as view:
        if name is not None and view.find(name) is not None:
            raise SessionExists(f"There is a session {name!r} already.")
        if key is not None and (other := view.keyed_session(key)) is not None:
            raise KeyTaken(f"The session {other.name!r} has the key {key!r}.")


def _forked(
    place: Point, name: str, directory: Path | None, token: str, key: str | None
) -> NewEvent:
    payload: dict[str, Any] = {"session": place.session, "seq": place.seq, "name": name}
    if key is not None:
        payload["key"] = key
    if directory is not None:
        from mulligan.workspace.entries import to_name  # most forks have no files of their own

        payload |= {"workspace": to_name(os.fsencode(directory)), "draft": token}
    return small_event(FORKED, payload)


def _documents(engine: Engine, view: View, by: Writer | None) -> DocumentAt:
    """Return the function that gives a session's document as of a seq.

    A writer keeps the newest document and some older ones. Without a writer, or where it has none,
    up to 512 events are replayed, while all other writers wait for the lock.
    """
    if by is not None:
        return partial(by.document_at, view)
    return lambda number, seq: document_at(view, number, seq, engine.load)


def _later_marks(txn: Txn, number: int, seq: int, at: DocumentAt) -> list[list[Any]]:
    """Return the parent's present marks of checkpoints up to ``seq`` that were not made by then."""
    head = txn.head(number).seq
    if head == seq:
        return []
    now = _marks(at(number, head))
    if not now:
        return []
    then = _marks(at(number, seq))
    new = {name: mark for name, mark in now.items() if not same(then.get(name, MISSING), mark)}
    shared = {identity for _, identity in txn.checkpoints(number, 1, seq)} if new else set()
    return [[["marks", name], mark] for name, mark in new.items() if name in shared]


def _inherited_effects(
    txn: Txn, parent: SessionRecord, by: Writer | None, seq: int, at: DocumentAt
) -> Change | None:
    """Return the event that tells the fork what was done outside, also after ``seq``.

    That is what its parent did, and the session that is forked, if that descends from the parent.
    """
    known: dict[str, Any] = {}
    own = by is not None and _descends(txn, by.record, parent)
    for record in (parent, *([by.record] if by is not None and own else [])):
        known |= ledger_of(at(record.number, txn.head(record.number).seq))
    return inherited_change(known, at(parent.number, seq)) if known else None


def _descends(view: View, session: SessionRecord, parent: SessionRecord) -> bool:
    while session.origin is not None:
        if session.origin.session == parent.number:
            return True
        session = view.session(session.origin.session)
    return False


def _marks(document: Document) -> dict[str, Any]:
    found = document.find(MARKS)
    if found is MISSING:
        return {}
    resolve = document.resolved
    entries = nodes.map_items(resolve(found), resolve)
    return {name: resolve(mark) for name, mark in entries}


def free_name(view: View, parent: str) -> str:
    """Return a name for a fork that no session has."""
    stem = parent[: MAX_NAME - 12]
    return next(n for i in count(1) if view.find(n := f"{stem}-fork-{i}") is None)
