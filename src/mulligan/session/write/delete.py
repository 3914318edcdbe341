"""Deleting a session: its name goes at once, what nothing else needs with the next collection.

Refused while a process holds one of its leases, and while a restore of files is not finished that
is its own or goes back to one of its points. Forks stay whole: upkeep keeps the events that they
continue from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mulligan.document.history import document_at
from mulligan.errors import Conflict, LeaseHeld, RestorePending
from mulligan.failpoints import Failpoint
from mulligan.layout import LOCKS
from mulligan.session.write.leases import is_held
from mulligan.session.write.pending_restore import read_pending_restore
from mulligan.timeline.sessions import known_session

if TYPE_CHECKING:
    from mulligan.engine import Engine
    from mulligan.journal.protocol import View
    from mulligan.model import SessionRecord


def delete_session(engine: Engine, name: str, expected: tuple[int, int] | None = None) -> None:
    """Delete the session of a name, in one transaction.

    ``expected`` is its number and the seq of its head: ``Conflict`` is raised if it has others.
    """
    # Pinned: the newest document is read below.
    with engine.pin(), engine.write() as txn:
        record = known_session(txn, name)
        head = txn.head(record.number).seq
        if expected is not None and expected != (record.number, head):
            raise Conflict(f"The session {name!r} was written to.", hint="Nothing was deleted.")
        _refuse_held(engine, txn, record)
        _refuse_pending(engine, txn, record)
        txn.delete_session(record.number, engine.clock.now())
        engine.failpoint(Failpoint.DELETE_WRITTEN)
    engine.failpoint(Failpoint.DELETE_COMMITTED)


def _refuse_held(engine: Engine, view: View, record: SessionRecord) -> None:
    now = engine.journal.now()
    for lease in view.leases(record.number):
        if is_held(lease, now):
            raise LeaseHeld(
                f"Session {record.name!r} is in use: {lease.holder.words} holds {lease.actor!r}.",
                hint="Nothing was deleted. End that process first, or `mulligan pause` it.",
            )


def _refuse_pending(engine: Engine, view: View, record: SessionRecord) -> None:
    """Refuse to delete what a restore of files still needs that was started and not finished."""
    # Other sessions by the marks of their restores: a store may have thousands of sessions.
    for number in sorted({record.number, *_marked(engine)}):
        other = next((one for one in view.sessions() if one.number == number), None)
        if other is None:
            continue
        document = document_at(view, number, view.head(number).seq, engine.load)
        pending = read_pending_restore(engine, document)
        if pending is None:
            continue
        if number == record.number or pending.point.session == record.name:
            raise RestorePending(
                f"A restore of files of session {other.name!r} in {pending.directory} to "
                f"#{pending.point.seq} of {pending.point.session!r} is not finished."
            )


def _marked(engine: Engine) -> set[int]:
    """Return the sessions that may have an unfinished restore."""
    if engine.directory is None:
        return set()
    from mulligan.workspace.locks import marked_sessions  # imports all that restores need

    return marked_sessions(engine.directory / LOCKS)
