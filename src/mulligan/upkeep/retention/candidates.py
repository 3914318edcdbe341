"""What retention has to know of the checkpoints of a store, read from its journal.

Events of checkpoints never change, so what was read of them once is remembered. What needs a
checkpoint follows from the newest documents of all sessions, and from the origins of forks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from mulligan.document.document import MISSING, Document, gc_paused
from mulligan.document.fold import CONTROL, STATE
from mulligan.document.history import document_at
from mulligan.engine import Engine
from mulligan.journal.protocol import View
from mulligan.model import Digest, Event, Path, SessionRecord
from mulligan.session.parts.operations import FAILED_OPERATIONS, OPERATIONS
from mulligan.timeline.checkpoints import is_safety
from mulligan.timeline.labels import label_seqs
from mulligan.timeline.marks import read_marks
from mulligan.timeline.pinned import read_pinned
from mulligan.upkeep.retention.policy import Policy
from mulligan.upkeep.retention.rulings import UNDO, Candidate, OperationState
from mulligan.upkeep.space.needed import UNDO as NEEDED_BY_UNDO
from mulligan.upkeep.space.needed import Needs, base_of

WORKFLOW = ("orchestrator", "workflow")

PAGE = 512
"""How many checkpoints are read within one snapshot."""


MAX_GAP = 3
"""Up to this distance of two checkpoints, reading what is between them is cheaper than a seek."""


class Facts(NamedTuple):
    """What the event of a checkpoint says; it never changes."""

    agent: str
    time: datetime
    kind: str
    is_safety: bool
    tree: Digest | None


class Need(NamedTuple):
    """That something needs what a timeline had at a seq."""

    session: int
    seq: int
    reason: str


class SessionFacts(NamedTuple):
    """A session as of its head: its own checkpoints, and what its newest document says."""

    record: SessionRecord
    head: int
    places: list[tuple[int, str]]
    labels: dict[int, str]
    verdicts: Mapping[str, str]
    pinned: frozenset[str]
    open_operations: frozenset[str]
    failed_operations: frozenset[str]
    needs: list[Need]
    retention: Any
    """The table ``[retention]`` of the workflow that was last run in it."""


class Gatherer:
    """Reads checkpoints and what needs them; what was read is used again for later plans."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._facts: dict[str, Facts] = {}
        self._needs = Needs(engine)

    def sessions(self) -> list[SessionFacts]:
        """Return how all sessions stand, each in a snapshot of its own."""
        # First: what a session needs that is written meanwhile is found when the plan is applied.
        self._needs.refresh()
        with self._engine.read() as view:
            records = view.sessions()
        found = []
        for record in records:
            with self._engine.read() as view:
                found.append(self._session(view, record))
        return found

    def candidates(
        self, sessions: list[SessionFacts], policies: Mapping[str, Policy], now: datetime
    ) -> list[Candidate]:
        """Return what retention decides on; ``policies`` are those of the sessions by name."""
        known = {facts.record.number: facts for facts in sessions}
        with gc_paused():
            self._read(sessions)
        needed = self._needed(known, policies, now)
        # A fork may pin, and give a label to, a checkpoint from before its origin.
        pinned = frozenset().union(*(facts.pinned for facts in sessions))
        return [
            self._candidate(facts, seq, identity, pinned, tuple(needed.get(identity, ())))
            for facts in sessions
            for seq, identity in facts.places
        ]

    def facts(self, identity: str) -> Facts:
        """Return what the event of a checkpoint says."""
        return self._facts[identity]

    def _session(self, view: View, record: SessionRecord) -> SessionFacts:
        head = view.head(record.number).seq
        document = document_at(view, record.number, head, self._engine.load)
        labels = label_seqs(self._engine, view, record)
        return SessionFacts(
            record,
            head,
            view.checkpoints(record.number, base_of(record) + 1, head),
            {seq: label for label, seq in labels.items()},
            {identity: mark.verdict for identity, mark in read_marks(document).items()},
            frozenset(read_pinned(document)),
            frozenset(_plain(document, (*CONTROL, OPERATIONS))),
            frozenset(_plain(document, (*CONTROL, FAILED_OPERATIONS))),
            [*_origin(record), *_inherited_labels(record, labels)],
            _plain(document, (*STATE, *WORKFLOW)).get("retention"),
        )

    def _read(self, sessions: list[SessionFacts]) -> None:
        """Read the events of checkpoints that are not known yet."""
        for facts in sessions:
            new = [place for place in facts.places if place[1] not in self._facts]
            for start in range(0, len(new), PAGE):
                with self._engine.read() as view:
                    self._read_page(view, facts.record.number, new[start : start + PAGE])
        present = {identity for facts in sessions for _, identity in facts.places}
        self._facts = {i: known for i, known in self._facts.items() if i in present}

    def _read_page(self, view: View, number: int, places: list[tuple[int, str]]) -> None:
        by_seq = dict(places)
        for first, last in _stretches([seq for seq, _ in places]):
            for event in view.remaining(number, first, last):
                if event.seq in by_seq:
                    self._facts[by_seq[event.seq]] = _facts(event)

    def _candidate(
        self,
        facts: SessionFacts,
        seq: int,
        identity: str,
        pinned: frozenset[str],
        needed_by: tuple[str, ...],
    ) -> Candidate:
        event = self._facts[identity]
        return Candidate(
            session=facts.record.name,
            agent=event.agent,
            id=identity,
            seq=seq,
            time=event.time,
            kind=event.kind,
            label=facts.labels.get(seq),
            pinned=identity in pinned,
            verdict=facts.verdicts.get(identity),
            is_safety=event.is_safety,
            operation=_operation(facts, identity),
            needed_by=needed_by,
        )

    def _needed(
        self, known: Mapping[int, SessionFacts], policies: Mapping[str, Policy], now: datetime
    ) -> dict[str, list[str]]:
        """Return the ids of the checkpoints that are needed, with the reasons."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for facts in known.values():
            for need in facts.needs:
                self._add(found, known, _owner(known, need.session, need.seq), need)
            since = now - timedelta(seconds=policies[facts.record.name].undo_window)
            for seq, reason in self._needs.on(facts.record, since).items():
                need = Need(facts.record.number, seq, reason)
                self._add(found, known, facts, need, since if reason == NEEDED_BY_UNDO else None)
        return found

    def _add(
        self,
        found: defaultdict[str, list[str]],
        known: Mapping[int, SessionFacts],
        owner: SessionFacts | None,
        need: Need,
        since: datetime | None = None,
    ) -> None:
        for identity in self._holders(known, owner, need.seq):
            # The window counts from the restore on. It may go back to an older checkpoint, which
            # is needed as long.
            is_young = since is not None and self._facts[identity].time >= since
            reason = UNDO if is_young else need.reason
            if reason not in found[identity]:
                found[identity].append(reason)

    def _holders(
        self, known: Mapping[int, SessionFacts], owner: SessionFacts | None, seq: int
    ) -> Iterator[str]:
        """Yield the checkpoint at or before a seq, and the one that holds its files."""
        is_first = True
        while owner is not None:
            for place, identity in reversed(owner.places):
                if place > seq:
                    continue
                has_files = self._facts[identity].tree is not None
                if is_first or has_files:
                    yield identity
                if has_files:
                    return
                is_first = False
            origin = owner.record.origin
            owner = known.get(origin.session) if origin else None
            seq = min(seq, origin.seq) if origin else seq


def _stretches(seqs: list[int]) -> Iterator[tuple[int, int]]:
    """Yield first and last seq of stretches that are read at once, which is cheaper for each."""
    first = last = seqs[0]
    for seq in seqs[1:]:
        if seq - last > MAX_GAP:
            yield first, last
            first = seq
        last = seq
    yield first, last


def _facts(event: Event) -> Facts:
    payload = event.payload
    tree = payload.get("workspace")
    kind: str = payload["kind"]
    return Facts(event.actor, event.time, kind, is_safety(event), Digest(tree) if tree else None)


def _operation(facts: SessionFacts, identity: str) -> OperationState | None:
    if identity in facts.open_operations:
        return "open"
    return "failed" if identity in facts.failed_operations else None


def _origin(record: SessionRecord) -> Iterator[Need]:
    if record.origin is not None:
        reason = f"session {record.name!r} was forked from here"
        yield Need(record.origin.session, record.origin.seq, reason)


def _inherited_labels(record: SessionRecord, labels: Mapping[str, int]) -> Iterator[Need]:
    """Yield the checkpoints before a fork that labels still name on its timeline."""
    for label, seq in labels.items():
        if seq <= base_of(record):
            reason = f"the label {label!r} names it in session {record.name!r}"
            yield Need(record.number, seq, reason)


def _owner(known: Mapping[int, SessionFacts], number: int, seq: int) -> SessionFacts | None:
    """Return the session that has an event of a timeline: itself, or an ancestor."""
    facts = known.get(number)
    while facts and facts.record.origin and seq <= facts.record.origin.seq:
        facts = known.get(facts.record.origin.session)
    return facts


def _plain(document: Document, path: Path) -> dict[str, Any]:
    found = document.find(path)
    plain = None if found is MISSING else document.plain(found)
    return plain if isinstance(plain, dict) else {}
