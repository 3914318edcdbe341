"""What folding must keep: the events that something still reads, each with the reason.

Some needs follow from the tables of the journal: checkpoints, forks, steps of the clock. Others
follow from the newest document of *any* session: a restore that can be undone, or is pending, may
refer to events of another session. Documents are read once per head (``Needs``).

Every event that stays must have the files it had before: what holds them stays, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from mulligan.document.document import MISSING, Document
from mulligan.document.fold import CHECKPOINT, CONTROL, PURGED, RESTORE_BEGUN, RESTORED, STATE
from mulligan.document.history import document_at
from mulligan.engine import Engine
from mulligan.journal.protocol import View
from mulligan.model import Event, Path, SessionRecord
from mulligan.session.components import AGENTS
from mulligan.session.names import SUPERVISOR
from mulligan.session.parts.operations import OPERATIONS
from mulligan.session.write import leases
from mulligan.session.write.pending_restore import read_pending_restore
from mulligan.timeline.moments import fold_at

RECOVERIES = "recoveries"
RECOVERY_ENDED = "recovery.ended"

FIRST = "it is the first event of the session"
KEPT = "it is a checkpoint"
FORKED_HERE = "a session was forked here"
CLOCK = "the clock was set back here"
UNDO = "undo or redo needs it"
PENDING = "a restore that is not finished needs it"
RECOVERY = "a recovery that is not judged yet needs it"
PURGE = "it names what was purged"
FILES = "it holds the files of an event that stays"

PAGE_EVENTS = 512
"""How many events are read within one snapshot."""


class _Need(NamedTuple):
    """Why an event is needed; ``time`` is that of the restore that undo would reverse."""

    session: int
    seq: int
    reason: str
    time: datetime | None = None


class _SessionNeeds(NamedTuple):
    """What the newest document of a session needs."""

    head: int
    needs: list[_Need]
    everything_after: int | None
    """The seq from which on all events of the session are needed."""
    prepared: datetime | None
    """When the last recovery was started, if it is not judged yet."""
    actors: frozenset[str]
    """The supervisor and the agents, whose events show that a recovery worked."""


class Needs:
    """What the sessions of a store need, as of the heads that were read."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[int, _SessionNeeds] = {}

    def refresh(self) -> None:
        """Read the sessions whose head has moved, each in its own snapshot."""
        with self._engine.read() as view:
            records = view.sessions()
        for record in records:
            with self._engine.read() as view:
                head = view.head(record.number).seq
                if self._head(record) != head:
                    self._known[record.number] = self._look(view, record, head)

    def behind(self, view: View) -> int:
        """Return how many events were written that ``refresh`` has not read."""
        found = view.sessions()
        return sum(view.head(record.number).seq - self._head(record) for record in found)

    def added(self, view: View) -> Iterator[tuple[int, int]]:
        """Yield (session number, seq) of what restores need that started since ``refresh``.

        Nothing else that is written can need an old event which was not needed before: the journal
        itself refuses to fold checkpoints and the origins of forks.
        """
        for record in view.sessions():
            head = view.head(record.number).seq
            for event in view.remaining(record.number, self._head(record) + 1, head):
                if event.kind == RESTORE_BEGUN:
                    for need in _of_target(view, event.payload, PENDING):
                        yield need.session, need.seq

    def of(self, record: SessionRecord) -> _SessionNeeds:
        """Return what the session's own document needs."""
        return self._known[record.number]

    def on(self, record: SessionRecord, undo_since: datetime | None) -> dict[int, str]:
        """Return the seqs of a session's own events that documents need, with the reasons.

        A restore before ``undo_since`` need not be undone any more.
        """
        return {
            need.seq: need.reason
            for found in self._known.values()
            for need in found.needs
            if need.session == record.number
            and not (need.time and undo_since and need.time < undo_since)
        }

    def _head(self, record: SessionRecord) -> int:
        known = self._known.get(record.number)
        return known.head if known else base_of(record)

    def _look(self, view: View, record: SessionRecord, head: int) -> _SessionNeeds:
        document = document_at(view, record.number, head, self._engine.load)
        needs = [*self._undoable(view, record, document), *self._pending(view, record, document)]
        control = _plain(document, CONTROL)
        attempt = _last(control.get(RECOVERIES))
        needs += _of_attempt(view, record, attempt)
        is_open = attempt.get("outcome") == "prepared"
        started = attempt.get("at")
        at = datetime.fromisoformat(started) if isinstance(started, str) else started
        return _SessionNeeds(
            head,
            needs,
            self._everything_after(view, record, document, control),
            at if is_open and isinstance(at, datetime) else None,
            frozenset({SUPERVISOR, *_plain(document, (*STATE, AGENTS))}),
        )

    def _undoable(self, view: View, record: SessionRecord, document: Document) -> Iterator[_Need]:
        for stack in ("undo", "redo"):
            found = document.find((stack,))
            for seq in [] if found is MISSING else document.plain(found):
                if fold_at(view, record.number, seq) is None:
                    yield from self._of_restore(view, record, seq)

    def _of_restore(self, view: View, record: SessionRecord, seq: int) -> Iterator[_Need]:
        """Yield what it takes to take a restore back: where it went to is just before it."""
        [event] = view.events(record.number, seq, seq)
        files = event.payload.get("files")
        safety = self._engine.plain(files)["safety"] if files is not None else None
        # The checkpoint and ``restore.begun`` are written together.
        seqs = [seq - 1, seq] + ([] if safety is None else [safety, safety + 1])
        for needed in seqs:
            yield _Need(_owner(view, record.number, needed), needed, UNDO, event.time)
        if safety is not None and fold_at(view, record.number, safety + 1) is None:
            [start] = view.events(record.number, safety + 1, safety + 1)
            for need in (
                _of_target(view, start.payload, UNDO) if start.kind == RESTORE_BEGUN else ()
            ):
                yield need._replace(time=event.time)

    def _pending(self, view: View, record: SessionRecord, document: Document) -> Iterator[_Need]:
        pending = read_pending_restore(self._engine, document)
        if pending is None:
            return
        target = {"session": pending.point.session, "seq": pending.point.seq}
        held = {"held": pending.held, "restored": pending.restored}
        yield from _of_target(view, {**target, **held}, PENDING)

    def _everything_after(
        self, view: View, record: SessionRecord, document: Document, control: Mapping[str, Any]
    ) -> int | None:
        """Return from where on all events are needed: a rollback asks who has written what."""
        found = [
            seq
            for checkpoint, operation in _mapping(control.get(OPERATIONS)).items()
            if _may_run(view, record, _mapping(operation).get("agent"))
            for _, number, seq in view.checkpoints_by_id(checkpoint)
            if number == record.number
        ]
        # What others write while a restore is pending stays, so finishing it reads their events.
        if (pending := read_pending_restore(self._engine, document)) is not None:
            found.append(pending.origin.safety)
        return min(found, default=None)


def needed_events(
    engine: Engine,
    record: SessionRecord,
    last: int,
    *,
    needs: Needs | None = None,
    keep: Mapping[int, str] | None = None,
    undo_since: datetime | None = None,
) -> dict[int, str]:
    """Return the seqs of a session's own events up to ``last`` that must stay, with the reasons.

    ``keep`` names more of them. Those that were folded away earlier are left out.
    """
    if needs is None:
        needs = Needs(engine)
        needs.refresh()
    first = base_of(record) + 1
    with engine.read() as view:
        wanted = dict.fromkeys(view.own_steps_back(record.number), CLOCK)
        wanted |= needs.on(record, undo_since) | dict(keep or {})
        wanted |= dict.fromkeys(forks(view, record), FORKED_HERE)
        wanted |= {seq: KEPT for seq, _ in view.checkpoints(record.number, first, last)}
        wanted[first] = FIRST
        folds = view.folds(record.number)
    wanted = {seq: reason for seq, reason in wanted.items() if first <= seq <= last}
    for fold in folds:
        for seq in [seq for seq in wanted if fold.first <= seq <= fold.last]:
            del wanted[seq]
    return _with_files(engine, record, last, wanted, needs.of(record))


def base_of(record: SessionRecord) -> int:
    """Return the seq before a session's own first event."""
    return record.origin.seq if record.origin else 0


def _with_files(
    engine: Engine, record: SessionRecord, last: int, wanted: dict[int, str], own: _SessionNeeds
) -> dict[int, str]:
    """Return what is needed, and what holds the files of these events and of those that follow."""
    found = dict(wanted)
    holders: list[int] = []
    is_prepared, sign = False, None
    for event in _remaining(engine, record, last):
        if event.kind == CHECKPOINT and event.payload.get("workspace"):
            holders = [event.seq]
        elif event.kind == RESTORED and "files" in event.payload:
            holders.append(event.seq)
        if own.prepared is not None and event.time > own.prepared:
            if event.kind == RECOVERY_ENDED and not is_prepared:
                is_prepared = True
                found.setdefault(event.seq, RECOVERY)
            elif is_prepared and event.actor in own.actors:
                sign = event.seq
        if event.kind == PURGED:
            found.setdefault(event.seq, PURGE)
        if event.seq in wanted:
            found |= {seq: FILES for seq in holders if seq not in found}
    # The files of the points after ``last``, until the next checkpoint.
    found |= {seq: FILES for seq in holders if seq not in found}
    return found if sign is None else {sign: RECOVERY, **found}


def _remaining(engine: Engine, record: SessionRecord, last: int) -> Iterator[Event]:
    """Yield the session's own events that were not folded away, in short snapshots."""
    seq = base_of(record) + 1
    while seq <= last:
        with engine.read() as view:
            if (fold := fold_at(view, record.number, seq)) is not None:
                seq = fold.last + 1
            stop = min(last, seq + PAGE_EVENTS - 1)
            page = list(view.remaining(record.number, seq, stop))
        yield from page
        seq = max(stop, seq) + 1


def forks(view: View, record: SessionRecord) -> Iterator[int]:
    """Yield the seqs of a session's own events that sessions were forked at."""
    for fork in view.sessions():
        if fork.origin and _owner(view, fork.origin.session, fork.origin.seq) == record.number:
            yield fork.origin.seq


def _owner(view: View, number: int, seq: int) -> int:
    """Return the session that has an event of a timeline: itself, or an ancestor."""
    record = view.session(number)
    while record.origin is not None and seq <= record.origin.seq:
        record = view.session(record.origin.session)
    return record.number


def _of_target(view: View, payload: Mapping[str, Any], reason: str) -> Iterator[_Need]:
    """Yield what a restore that started needs of the timeline it goes back to."""
    session = view.find(payload["session"])
    if session is None:
        return
    for seq in (payload["seq"], payload.get("held"), payload.get("restored")):
        if seq is not None:
            yield _Need(_owner(view, session.number, seq), seq, reason)


def _of_attempt(view: View, record: SessionRecord, attempt: Mapping[str, Any]) -> Iterator[_Need]:
    """Yield where a recovery goes back to that was interrupted itself."""
    seq, name = attempt.get("seq"), attempt.get("session")
    session = record if name is None else view.find(name)
    if attempt.get("outcome") == "begun" and seq is not None and session is not None:
        yield _Need(_owner(view, session.number, seq), seq, RECOVERY)


def _may_run(view: View, record: SessionRecord, agent: Any) -> bool:
    """Whether the process of an operation may still run; without a lease it cannot be known."""
    lease = view.lease(record.number, agent) if isinstance(agent, str) else None
    return lease is None or not (lease.released or leases.is_dead(lease.holder))


def _plain(document: Document, path: Path) -> dict[str, Any]:
    found = document.find(path)
    return {} if found is MISSING else _mapping(document.plain(found))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _last(value: Any) -> dict[str, Any]:
    return _mapping(value[-1]) if isinstance(value, list) and value else {}
