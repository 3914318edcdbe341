"""Checking a session: its chain, its indexes, its keyframes, and everything it refers to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from mulligan import codec
from mulligan.check.findings import Findings
from mulligan.codec import ListBranch, MapBranch, Ref
from mulligan.document.document import Document, settle_root
from mulligan.document.fold import CHECKPOINT, EMPTY, RESTORED, fold
from mulligan.document.history import document_at, from_keyframe
from mulligan.engine import Engine
from mulligan.errors import MulliganError
from mulligan.journal.protocol import View
from mulligan.model import ID_SIZE, Digest, Event, SessionRecord
from mulligan.timeline.checkpoints import read_checkpoint
from mulligan.timeline.files import restored_files
from mulligan.workspace.capture.patch import PATCH, leaf_in, read_patch
from mulligan.workspace.entries import FILE, split_chunks


class Graph:
    """Follows references from events and keyframes; each object is checked once."""

    def __init__(self, engine: Engine, findings: Findings, full: bool) -> None:
        self._engine = engine
        self._findings = findings
        self._full = full
        self._seen: set[Digest] = set()
        self._seen_trees: set[Digest] = set()
        self._patched: defaultdict[Digest, set[str]] = defaultdict(set)

    def follow(self, value: Any, where: str) -> None:
        """Check that everything a frozen value refers to exists."""
        pending = list(references(value))
        while pending:
            digest = pending.pop()
            if digest in self._seen:
                continue
            self._seen.add(digest)
            try:
                pending += self._inside(digest)
            except MulliganError as error:
                self._findings.report("object", f"{digest.hex()}, needed by {where}", error)

    def follow_tree(self, tree: Digest, where: str) -> None:
        """Check that a tree, everything below it and the content of its files exist."""
        try:
            self._check_patch(tree)
        except MulliganError as error:
            self._findings.report("object", f"{tree.hex()}, needed by {where}", error)
            return
        pending = [tree]
        while pending:
            digest = pending.pop()
            if digest in self._seen_trees:
                continue
            self._seen_trees.add(digest)
            try:
                node = codec.decode(self._engine.load(digest))
                lists = list(chunk_lists(node))
                pending += set(references(node)) - {c.digest for c in lists if isinstance(c, Ref)}
                for chunks in lists:
                    self._check_chunks(chunks, where)
            except MulliganError as error:
                self._findings.report("object", f"{digest.hex()}, needed by {where}", error)

    def _check_patch(self, tree: Digest) -> None:
        """Check that a patch can be applied to its base; each part of a base is checked once."""
        document = Document({}, self._engine.load)
        patch = read_patch(document, tree)
        base, known = document.with_root(Ref(patch.base)), self._patched[patch.base]
        for path in patch.entries.keys() - known:
            leaf_in(base, tuple(path.split("/")))
            known.add(path)

    def _check_chunks(self, chunks: Any, where: str) -> None:
        if isinstance(chunks, Ref):
            chunks = codec.decode(self._engine.load(chunks.digest))
        for chunk in set(split_chunks(chunks)) - self._seen:
            self._seen.add(chunk)
            if not self._engine.objects.has(chunk):
                self._findings.report(
                    "object", f"{chunk.hex()}, needed by {where}", "it is missing"
                )

    def _inside(self, digest: Digest) -> list[Digest]:
        if self._full:
            return list(references(codec.decode(self._engine.load(digest))))
        if not self._engine.objects.has(digest):
            self._engine.load(digest)
        return []


def references(value: Any) -> Iterator[Digest]:
    """Yield the digests that a frozen value refers to, without loading its objects."""
    if isinstance(value, Ref):
        yield value.digest
    elif isinstance(value, dict):
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)
    elif isinstance(value, ListBranch | MapBranch):
        yield from references(value.slots)


def chunk_lists(node: Any) -> Iterator[Any]:
    """Yield the chunk lists of the files in a part of a tree: digests, or a reference."""
    if isinstance(node, dict):
        for entry in node.values():
            yield from chunk_lists(entry)
    elif isinstance(node, MapBranch):
        for slot in node.slots:
            yield from chunk_lists(slot)
    elif isinstance(node, list) and len(node) > 4 and node[0] == FILE:
        yield node[4]
    elif isinstance(node, list) and len(node) > 2 and node[0] == PATCH:
        yield from chunk_lists(node[2])


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
        self._actors: set[str] = set()
        self._steps_back: list[int] = []
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
        for step, tables in (
            (self._names, ("names", "heads")),
            (self._find_keyframes, ("heads", "keyframes")),
            (self._chain, ("heads", "events")),
            (self._times, ("events", "meta")),
            (self._indexes, ("heads", "checkpoints", "keyframes", "labels", "leases")),
        ):
            try:
                if self._findings.can_read(*tables):
                    step()
            except MulliganError as error:
                self._report("journal", "", error)

    def _report(self, what: str, place: str, detail: object) -> None:
        where = f"session {self._record.name!r}" + (f" {place}" if place else "")
        self._findings.report(what, where, detail)

    def _names(self) -> None:
        found = self._view.find(self._record.name)
        if found != self._record:
            self._report("index", "name", "its name does not lead to it")
        if self._record.origin is not None:
            parent = self._view.head(self._record.origin.session)
            if parent.seq < self._base:
                self._report("journal", "origin", f"its parent ends before #{self._base}")

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
                document = None
                continue
            self.events += 1
            self._event(event, last)
            document = self._replayed(document, event, seq)
            last = event
        if last is not None and last.seq == head.seq and last.hash != head.hash:
            self._report("index", "head", f"it does not hold the hash of #{head.seq}")
        if self._has_event(head.seq + 1):
            self._report("index", "head", f"there is an event after its #{head.seq}")

    def _times(self) -> None:
        """Check that time goes backwards only where that is recorded."""
        # The first event of a fork is compared with its parent's, which is not read here.
        noted = {
            seq for seq in self._view.own_steps_back(self._record.number) if seq > self._base + 1
        }
        found = set(self._steps_back)
        for seq in sorted(found - noted):
            self._report("journal", f"event #{seq}", "its time is before the one before it")
        for seq in sorted(noted - found):
            self._report("index", f"event #{seq}", "its time is not before the one before it")

    def _own_events(self, last: int) -> Iterator[tuple[int, Event | None]]:
        """Yield each seq with its event; a broken event is recorded, and None takes its place."""
        seq = self._base + 1
        while seq <= last:
            try:
                for event in self._view.events(self._record.number, seq, last):
                    yield seq, event
                    seq += 1
            except MulliganError as error:
                self._report("journal", f"event #{seq}", error)
                yield seq, None
                seq += 1

    def _has_event(self, seq: int) -> bool:
        try:
            return any(True for _ in self._view.events(self._record.number, seq, seq))
        except MulliganError:  # as expected, there is none
            return False

    def _event(self, event: Event, before: Event | None) -> None:
        where = f"event #{event.seq} of session {self._record.name!r}"
        self._actors.add(event.actor)
        if before is not None and before.seq == event.seq - 1 and event.time < before.time:
            self._steps_back.append(event.seq)
        self._graph.follow(event.payload, where)
        if event.kind == CHECKPOINT:
            self._checkpoint(event)
        elif event.kind == RESTORED:
            self._restore(event)

    def _checkpoint(self, event: Event) -> None:
        place = f"checkpoint #{event.seq}"
        identity = event.hash[:ID_SIZE].hex()
        self._checkpoints.append((event.seq, identity))
        can_read, here = self._findings.can_read, (identity, self._record.number, event.seq)
        if can_read("ids") and self._view.checkpoints_by_id(identity) != [here]:
            self._report("index", place, f"its id {identity} does not lead to it")
        try:
            found = read_checkpoint(self._engine, event)
        except (MulliganError, KeyError, TypeError, ValueError) as error:
            self._report("journal", place, f"its record cannot be read: {error}")
            return
        if found.label:
            self._labels.add((found.label, event.seq))
        if found.label and not self._is_labelled(found.label, event.seq):
            self._report("index", place, f"its label {found.label!r} does not lead to it")
        if found.workspace is not None:
            self._graph.follow_tree(found.workspace, f"{place} of session {self._record.name!r}")
        if can_read("keyframes") and found.keyframe != self._keyframes.get(event.seq):
            self._report("index", place, "its keyframe is not the one in the index")

    def _restore(self, event: Event) -> None:
        """Check the tree that a restore left: later points refer to its files."""
        place = f"restore #{event.seq}"
        try:
            files = restored_files(self._engine, event)
            tree = None if files is None else files.get("after")
        except (MulliganError, AttributeError, TypeError) as error:
            self._report("journal", place, f"its record cannot be read: {error}")
            return
        if tree is not None:
            self._graph.follow_tree(Digest(tree), f"{place} of session {self._record.name!r}")

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
            self._report("journal", "origin", error)
            return None

    def _replayed(self, document: Document | None, event: Event, seq: int) -> Document | None:
        """Fold an event, and compare the result with the keyframe at its seq, if any."""
        keyframe = self._keyframes.get(seq)
        try:
            if document is not None:
                document = fold(document, event.kind, event.payload, seq)
            if keyframe is None:
                return document
            self._graph.follow(Ref(keyframe), f"keyframe #{seq} of session {self._record.name!r}")
            if document is not None and settle_root(document.root, codec.value_digest) != keyframe:
                self._report("index", f"keyframe #{seq}", "it is not the state at that event")
            return from_keyframe(keyframe, self._engine.load) if self._full else None
        except (MulliganError, KeyError, TypeError) as error:
            self._report("journal", f"event #{seq}", f"its state cannot be worked out: {error}")
            return None

    def _indexes(self) -> None:
        number = self._record.number
        head = self._view.head(number)
        if head.checkpoint != self._view.checkpoint_before(number, head.seq):
            self._report("index", "head", "it does not hold the newest checkpoint")
        keyframe = self._view.keyframe(number, head.seq)
        if head.keyframe != (keyframe[0] if keyframe else 0):
            self._report("index", "head", "it does not hold the newest keyframe")
        for label, seq in self._view.labels(number):
            if (label, seq) not in self._labels:
                self._report("index", f"label {label!r}", f"checkpoint #{seq} does not carry it")
        listed = self._view.checkpoints(number, self._base + 1, head.seq)
        for seq, identity in sorted(set(listed) ^ set(self._checkpoints)):
            state = "listed but not recorded" if (seq, identity) in listed else "not listed"
            self._report("index", f"checkpoint #{seq}", f"{identity} is {state}")
        for actor in self._actors:
            self._view.lease(number, actor)
