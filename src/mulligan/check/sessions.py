"""Checking a session: its chain, its indexes, its keyframes, and everything it refers to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

from mulligan import codec
from mulligan.check.findings import About, Findings
from mulligan.check.graph import Graph, User
from mulligan.codec import Ref
from mulligan.document.compare import is_same_content
from mulligan.document.document import Document, settle_root
from mulligan.document.fold import CHECKPOINT, EMPTY, RESTORED, fold
from mulligan.document.history import document_at, from_keyframe
from mulligan.engine import Engine
from mulligan.errors import DamagedJournal, MulliganError, PointFolded
from mulligan.journal.protocol import View
from mulligan.model import ID_SIZE, Digest, Event, Fault, Fold, SessionRecord
from mulligan.timeline.checkpoints import read_checkpoint
from mulligan.timeline.files import restored_files


class SessionCheck:
    """Reads a session's own events once and checks every index against them."""

    def __init__(
        self,
        engine: Engine,
        view: View,
        record: SessionRecord,
        findings: Findings,
        graph: Graph,
        full: bool,
    ) -> None:
        self._engine = engine
        self._view = view
        self._record = record
        self._findings = findings
        self._graph = graph
        self._full = full
        self._base = record.origin.seq if record.origin else 0
        self._keyframes: dict[int, Digest] = {}
        self._checkpoints: list[tuple[int, str]] = []
        self._labels: set[tuple[str, int]] = set()
        self._keys: set[tuple[bytes, int]] = set()
        self._actors: set[str] = set()
        self._steps_back: list[int] = []
        self._pruned: set[tuple[int, str]] = set()
        self._fold: Fold | None = None
        self.events = 0

    @property
    def ids(self) -> set[str]:
        """The ids of the session's own checkpoints."""
        return {identity for _, identity in self._checkpoints}

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers of the session's own events, checkpoints and keyframes."""
        return self.events, len(self._checkpoints), len(self._keyframes)

    def check(self) -> None:
        """Check everything in the session; damage is recorded and the check continues."""
        # In this order: later steps compare with what earlier ones collected.
        for step, tables in (
            (self._names, ("names", "heads")),
            (self._find_keyframes, ("heads", "keyframes")),
            (self._chain, ("heads", "events")),
            (self._folds, ("heads", "folds", "events", "checkpoints", "keyframes", "pruned")),
            (self._times, ("events", "meta")),
            (self._indexes, ("heads", "checkpoints", "keyframes", "labels", "leases", "pruned")),
            (self._foreign_keys, ("keys", "events")),
        ):
            try:
                if self._findings.can_read(*tables):
                    step()
            except MulliganError as error:
                table = error.table if isinstance(error, DamagedJournal) else None
                self._report("table", "", error, table=table or tables[0])

    def _report(self, fault: Fault, place: str, detail: object, **about: Unpack[About]) -> None:
        where = f"session {self._record.name!r}" + (f" {place}" if place else "")
        about["session"] = self._record.number
        self._findings.report(fault, where, detail, **about)

    def _wrong_index(self, table: str, place: str, detail: str, seq: int | None = None) -> None:
        about: About = {"table": table} if seq is None else {"table": table, "seq": seq}
        self._report("index", place, detail, **about)

    def _user(self, place: str, seq: int) -> User:
        return User(f"{place} of session {self._record.name!r}", self._record.number, seq)

    def _names(self) -> None:
        found = self._view.find(self._record.name)
        if found != self._record:
            self._wrong_index("names", "name", "its name refers to another session or to none")
        if self._record.origin is not None:
            parent = self._view.head(self._record.origin.session)
            if parent.seq < self._base:
                self._report(
                    "event", "origin", f"its parent ends before #{self._base}", seq=self._base
                )

    def _find_keyframes(self) -> None:
        number = self._record.number
        found = self._view.keyframe(number, self._view.head(number).seq)
        while found is not None and found[0] > self._base:
            self._keyframes[found[0]] = found[1]
            found = self._view.keyframe(number, found[0] - 1)

    def _chain(self) -> None:
        head = self._view.head(self._record.number)
        document = self._document_before() if self._full else None
        last: Event | None = None
        for seq, event in self._own_events(head.seq):
            if event is None:
                # Without this event, the state is unknown until the next keyframe.
                document = None
                continue
            self.events += 1
            if (passed := self._passed_fold(seq)) is not None:
                document = self._document_after(passed) if self._full else None
            self._time(event, last, passed)
            self._event(event)
            document = self._replayed(document, event, seq)
            last = event
        if last is not None and last.seq == head.seq and last.hash != head.hash:
            self._wrong_index("heads", "head", f"it does not hold the hash of #{head.seq}")
        if self._has_event(head.seq + 1):
            self._wrong_index("heads", "head", f"there is an event after its #{head.seq}")

    def _passed_fold(self, seq: int) -> Fold | None:
        """Return the fold that ends just before an event."""
        fold, self._fold = self._fold, None
        return fold if fold is not None and fold.last == seq - 1 else None

    def _document_after(self, fold: Fold) -> Document | None:
        try:
            return from_keyframe(fold.keyframe, self._engine.load)
        except MulliganError:  # the graph has reported it
            return None

    def _time(self, event: Event, before: Event | None, fold: Fold | None) -> None:
        """Note where the clock was set back; across a fold, its end counts."""
        earlier = None
        if fold is not None:
            earlier = fold.ended
        elif before is not None and before.seq == event.seq - 1:
            earlier = before.time
        if earlier is not None and event.time < earlier:
            self._steps_back.append(event.seq)

    def _times(self) -> None:
        """Check that time goes backwards only where that is recorded."""
        # The first event of a fork is compared with its parent's, which is not read here.
        noted = {
            seq for seq in self._view.own_steps_back(self._record.number) if seq > self._base + 1
        }
        found = set(self._steps_back)
        for seq in sorted(found - noted):
            detail = "its time is before the one before it"
            self._report("event", f"event #{seq}", detail, seq=seq)
        for seq in sorted(noted - found):
            detail = "its time is not before the one before it"
            self._wrong_index("meta", f"event #{seq}", detail, seq)

    def _own_events(self, last: int) -> Iterator[tuple[int, Event | None]]:
        """Yield each seq with its event; a broken event is recorded, and None takes its place."""
        seq = self._base + 1
        folds = {fold.first: fold for fold in self._view.folds(self._record.number)}
        while seq <= last:
            if seq in folds:
                seq = self._folded(folds[seq])
                continue
            try:
                for event in self._view.events(self._record.number, seq, last):
                    yield seq, event
                    seq += 1
            except MulliganError as error:
                if isinstance(error, PointFolded) and seq in folds:
                    continue
                self._report("event", f"event #{seq}", error, seq=seq)
                # Continue after it: one damaged record must not hide the rest.
                yield seq, None
                seq += 1

    def _folded(self, fold: Fold) -> int:
        """Check what is left of folded events; return the seq after them.

        The chain is checked by the event that follows: its hash covers the one of the fold.
        """
        where = f"fold #{fold.first} to #{fold.last}"
        self._graph.follow(Ref(fold.keyframe), self._user(where, fold.last))
        self._fold = fold
        known = self._keyframes.get(fold.last)
        if self._findings.can_read("keyframes") and fold.keyframe != known:
            detail = "its keyframe is not the one in the index"
            self._wrong_index("keyframes", where, detail, fold.last)
        return fold.last + 1

    def _folds(self) -> None:
        """Check the places of the folds, and that nothing is left of what they took."""
        number, head = self._record.number, self._view.head(self._record.number).seq
        after = self._base + 1
        for found in self._view.folds(number):
            where = f"fold #{found.first} to #{found.last}"
            # The first and the newest event, and one between two folds, always stay.
            if not after < found.first <= found.last < head:
                self._report("event", where, "it is where no fold can be", seq=found.last)
            if found.started > found.ended:
                self._report("event", where, "it starts later than it ends", seq=found.last)
            after = found.last + 1
        for table, seq in self._view.inside_folds(number):
            detail = f"table {table!r} still has a record of it"
            self._wrong_index(table, f"fold over #{seq}", detail, seq)

    def _has_event(self, seq: int) -> bool:
        try:
            return any(True for _ in self._view.events(self._record.number, seq, seq))
        except MulliganError:  # as expected, there is none
            return False

    def _event(self, event: Event) -> None:
        self._actors.add(event.actor)
        self._graph.follow(event.payload, self._user(f"event #{event.seq}", event.seq))
        if event.kind == CHECKPOINT:
            self._checkpoint(event)
        elif event.kind == RESTORED:
            self._restore(event)

    def _checkpoint(self, event: Event) -> None:
        place = f"checkpoint #{event.seq}"
        identity = event.hash[:ID_SIZE].hex()
        if self._view.pruned_before(self._record.number, event.seq) == (event.seq, identity):
            self._pruned.add((event.seq, identity))
            return
        self._checkpoints.append((event.seq, identity))
        can_read, here = self._findings.can_read, (identity, self._record.number, event.seq)
        if can_read("ids") and self._view.checkpoints_by_id(identity) != [here]:
            detail = f"its id {identity} refers to another checkpoint or to none"
            self._wrong_index("ids", place, detail, event.seq)
        try:
            found = read_checkpoint(self._engine, event)
        except (MulliganError, KeyError, TypeError, ValueError) as error:
            self._report("record", place, f"its record cannot be read: {error}", seq=event.seq)
            return
        if found.label:
            self._labels.add((found.label, event.seq))
        if found.label and not self._is_labelled(found.label, event.seq):
            detail = f"its label {found.label!r} refers to another checkpoint or to none"
            self._wrong_index("labels", place, detail, event.seq)
        if found.key is not None:
            self._keys.add((codec.key_digest(found.key), event.seq))
        if found.workspace is not None:
            self._graph.follow_tree(found.workspace, self._user(place, event.seq))
        if can_read("keyframes") and found.keyframe != self._keyframes.get(event.seq):
            detail = "its keyframe is not the one in the index"
            self._wrong_index("keyframes", place, detail, event.seq)

    def _restore(self, event: Event) -> None:
        """Check the tree that a restore left: later points refer to its files."""
        place = f"restore #{event.seq}"
        try:
            files = restored_files(self._engine, event)
            tree = None if files is None else files.get("after")
        except (MulliganError, AttributeError, TypeError) as error:
            self._report("record", place, f"its record cannot be read: {error}", seq=event.seq)
            return
        if tree is not None:
            self._graph.follow_tree(Digest(tree), self._user(place, event.seq))

    def _is_labelled(self, label: str, seq: int) -> bool:
        if not self._findings.can_read("labels"):
            return True
        return seq in self._view.labelled(self._record.number, label)

    def _document_before(self) -> Document | None:
        if self._record.origin is None:
            return Document(EMPTY, self._engine.load)
        parent = self._record.origin.session
        try:
            return document_at(self._view, parent, self._base, self._engine.load)
        except MulliganError as error:
            self._report("state", "origin", error, seq=self._base)
            return None

    def _replayed(self, document: Document | None, event: Event, seq: int) -> Document | None:
        """Fold an event, and compare the result with the keyframe at its seq, if any."""
        keyframe = self._keyframes.get(seq)
        try:
            if document is not None:
                document = fold(document, event.kind, event.payload, seq)
            if keyframe is None:
                return document
            self._graph.follow(Ref(keyframe), self._user(f"keyframe #{seq}", seq))
            if document is not None and not self._is_state(document, keyframe):
                detail = "it is not the state at that event"
                self._wrong_index("keyframes", f"keyframe #{seq}", detail, seq)
            # Continue from the keyframe, so that a wrong one is reported once.
            return from_keyframe(keyframe, self._engine.load) if self._full else None
        except (MulliganError, KeyError, TypeError) as error:
            detail = f"its state cannot be computed: {error}"
            self._report("state", f"event #{seq}", detail, seq=seq)
            return None

    def _is_state(self, document: Document, keyframe: Digest) -> bool:
        """Whether a keyframe is the state.

        Its content decides: after a purge, and in states from before there were ordered dicts, it
        may be divided into other objects than a replay gives.
        """
        if settle_root(document.root, codec.value_digest) == keyframe:
            return True
        return is_same_content(document, document.root, Ref(keyframe))

    def _indexes(self) -> None:
        number = self._record.number
        head = self._view.head(number)
        if head.checkpoint != self._view.checkpoint_before(number, head.seq):
            self._wrong_index("heads", "head", "it does not hold the newest checkpoint")
        keyframe = self._view.keyframe(number, head.seq)
        newest = keyframe[0] if keyframe else 0
        # A fork starts with its parent's newest keyframe, which a fold may have replaced since.
        if head.keyframe != newest and max(head.keyframe, newest) > self._base:
            self._wrong_index("heads", "head", "it does not hold the newest keyframe")
        for label, seq in self._view.labels(number):
            if (label, seq) not in self._labels:
                detail = f"checkpoint #{seq} does not carry it"
                self._wrong_index("labels", f"label {label!r}", detail, seq)
        listed = self._view.checkpoints(number, self._base + 1, head.seq)
        for seq, identity in sorted(set(listed) ^ set(self._checkpoints)):
            state = "listed but not recorded" if (seq, identity) in listed else "not listed"
            self._wrong_index("checkpoints", f"checkpoint #{seq}", f"{identity} is {state}", seq)
        pruned = self._view.pruned_before(number, head.seq)
        while pruned is not None and pruned[0] > self._base:
            if pruned not in self._pruned:
                place, detail = f"pruned checkpoint #{pruned[0]}", "there is no such event"
                self._wrong_index("pruned", place, detail, pruned[0])
            pruned = self._view.pruned_before(number, pruned[0] - 1)
        for actor in self._actors:
            # Reading a lease checks its record.
            self._view.lease(number, actor)

    def _foreign_keys(self) -> None:
        """Check that every foreign key of a checkpoint finds it, and that no other is listed."""
        listed = set(self._view.keys(self._record.number))
        for key, seq in sorted(listed ^ self._keys):
            state = "listed, and its event does not have it" if (key, seq) in listed else "missing"
            detail = f"its key {key.hex()[:16]} is {state}"
            self._wrong_index("keys", f"checkpoint #{seq}", detail, seq)
