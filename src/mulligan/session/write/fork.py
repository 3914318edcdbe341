"""Forks: a new session that continues from a point of another one.

Its past is its parent's up to that point, and so are the verdicts on it: a mark comes later than
its checkpoint, often later than the point, and is taken over as it stands when the fork is made.
Marks that are given afterwards stay in the session they are given in.
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import Any

from mulligan.document import nodes
from mulligan.document.compare import same
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import FORKED, MARKS, event_change, new_event, small_event
from mulligan.document.history import document_at
from mulligan.engine import Engine
from mulligan.errors import SessionExists
from mulligan.journal.protocol import Txn, View
from mulligan.model import Digest, ForkOrigin, NewEvent, ObjectKind, Point, SessionRecord
from mulligan.session.names import MAX_NAME
from mulligan.timeline.sessions import known_session
from mulligan.workspace.entries import to_name

INHERITED = "marks.inherited"


def make_fork(
    engine: Engine,
    place: Point,
    name: str | None,
    actor: str,
    directory: Path | None = None,
    token: str = "",
) -> SessionRecord:
    """Make a session that continues from a place, in one transaction.

    ``token`` names the directory that was made for it; see
    ``mulligan.session.write.fork_directory``.
    """
    bundle = engine.bundle()

    def put(data: bytes) -> Digest:
        return bundle.put(ObjectKind.VALUE, data)

    with engine.write(bundle) as txn:
        parent = known_session(txn, place.session)
        now = engine.clock.now()
        # Under the write lock, so that a name which is free stays free until the commit.
        chosen = name or free_name(txn, place.session)
        record = txn.create(chosen, now, ForkOrigin(parent.number, place.seq))
        new_events = [_forked(place, chosen, directory, token)]
        if marks := _later_marks(engine, txn, parent.number, place.seq):
            new_events.append(new_event(event_change(INHERITED, control=marks), put))
        txn.append(record.number, new_events, actor=actor, epoch=0, time=now)
    return record


def refuse_taken(engine: Engine, name: str | None) -> None:
    """Refuse a name that a session has, before files are written for it."""
    with engine.read() as view:
        if name is not None and view.find(name) is not None:
            raise SessionExists(f"There is a session {name!r} already.")


def _forked(place: Point, name: str, directory: Path | None, token: str) -> NewEvent:
    payload: dict[str, Any] = {"session": place.session, "seq": place.seq, "name": name}
    if directory is not None:
        payload |= {"workspace": to_name(os.fsencode(directory)), "draft": token}
    return small_event(FORKED, payload)


def _later_marks(engine: Engine, txn: Txn, number: int, seq: int) -> list[list[Any]]:
    """Return what the parent's marks of checkpoints up to ``seq`` are now and were not then."""
    head = txn.head(number).seq
    if head == seq:
        return []
    now = _marks(document_at(txn, number, head, engine.load))
    then = _marks(document_at(txn, number, seq, engine.load))
    new = {name: mark for name, mark in now.items() if not same(then.get(name, MISSING), mark)}
    shared = {identity for _, identity in txn.checkpoints(number, 1, seq)} if new else set()
    return [[["marks", name], mark] for name, mark in new.items() if name in shared]


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
