"""Searching the history of a store: which events, values and files hold what is to be purged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from mulligan import codec
from mulligan.codec import MapBranch, Ref
from mulligan.document.fold import CHECKPOINT, CREATED, FORKED
from mulligan.document.nodes import references
from mulligan.engine import Engine
from mulligan.errors import DamageError, PurgeRefused
from mulligan.journal.copies import copied_bodies
from mulligan.journal.protocol import View
from mulligan.model import Digest, Event, ObjectKind, SessionRecord
from mulligan.timeline.references import event_references, tree_references
from mulligan.upkeep.known_lost import KnownLosses
from mulligan.upkeep.purge.contents import ContentSearch
from mulligan.upkeep.purge.text import Pattern, Where, mask, places
from mulligan.upkeep.space.mark import is_pruned
from mulligan.upkeep.tree_walk import tree_part
from mulligan.workspace.capture.patch import PATCH
from mulligan.workspace.entries import FILE, SELF, TreePath, file_chunks, shown

PAGE_EVENTS = 256
"""How many events are read within one snapshot."""


class FoundEvent(msgspec.Struct, frozen=True):
    """An event that holds it: where in its payload, and hints at what."""

    session: str
    number: int
    seq: int
    kind: str
    where: tuple[str, ...]
    hints: tuple[str, ...]


class HeldTree(NamedTuple):
    """A tree that an event refers to."""

    session: str
    seq: int
    is_checkpoint: bool


class History:
    """Walks everything that the events of a store refer to, each object once.

    ``pattern`` is None if only trees matter. It goes on where it stopped: see :meth:`catch_up`.
    """

    def __init__(
        self,
        engine: Engine,
        pattern: Pattern | None,
        is_wanted: Callable[[SessionRecord], bool],
    ) -> None:
        self._engine = engine
        self._losses = KnownLosses(engine)
        self._pattern = pattern
        self._is_wanted = is_wanted
        self._seen: dict[int, int] = {}
        self._walked: set[Digest] = set()
        self.events: dict[tuple[int, int], FoundEvent] = {}
        self.values: set[Digest] = set()
        self.trees: dict[Digest, list[HeldTree]] = {}
        self.copies: set[Digest] = set()
        """Copies of events that hold it, also of events that were folded away since."""
        self.contents = None if pattern is None else ContentSearch(engine, pattern)

    def walk(self) -> None:
        """Walk the whole history, in short snapshots."""
        with self._engine.read() as view:
            records = [record for record in view.sessions() if self._is_wanted(record)]
        for record in records:
            while self._page(record):
                pass
        with self._engine.read() as view:
            self._search_copies(view)
        self._search_contents()

    def catch_up(self, view: View) -> bool:
        """Walk what was committed since, and return whether anything was.

        ``view`` may be a write transaction.
        """
        before = dict(self._seen)
        for record in filter(self._is_wanted, view.sessions()):
            first, head = self._next(record), view.head(record.number).seq
            if first <= head:
                self._walk_range(view, record, first, head)
        self._search_copies(view)
        self._search_contents()
        return self._seen != before

    def _search_copies(self, view: View) -> None:
        """Search the copies of events that are new; each is read once."""
        if self._pattern is None:
            return
        wanted = {record.number for record in filter(self._is_wanted, view.sessions())}
        new = {copy.digest for copy in view.copies() if copy.session in wanted} - self._walked
        self._walked |= new
        self.copies |= {digest for digest in new if self._is_hit(digest)}

    def _is_hit(self, copy: Digest) -> bool:
        try:
            data = self._engine.objects.get(ObjectKind.EVENTS, copy)
            return any(self._hits(codec.decode(body)[4]) for body in copied_bodies(data))
        except DamageError:
            return True  # what cannot be read may hold it, and is made again from the events

    def _search_contents(self) -> None:
        if self.contents is not None:
            self.contents.search()

    def _next(self, record: SessionRecord) -> int:
        return self._seen.get(record.number, record.origin.seq if record.origin else 0) + 1

    def _page(self, record: SessionRecord) -> bool:
        first = self._next(record)
        with self._engine.read() as view:
            last = min(view.head(record.number).seq, first + PAGE_EVENTS - 1)
            if first > last:
                return False
            self._walk_range(view, record, first, last)
        return True

    def _walk_range(self, view: View, record: SessionRecord, first: int, last: int) -> None:
        for event in view.remaining(record.number, first, last):
            self._event(record, event, is_pruned=is_pruned(view, record.number, event))
        roots = [fold.keyframe for fold in view.folds(record.number) if first <= fold.last <= last]
        seq = last
        while (keyframe := view.keyframe(record.number, seq)) is not None and keyframe[0] >= first:
            roots.append(keyframe[1])
            seq = keyframe[0] - 1
        self._values(roots)
        self._seen[record.number] = last

    def _event(self, record: SessionRecord, event: Event, *, is_pruned: bool) -> None:
        # The tree of a pruned checkpoint may be gone, and nothing leads to what is left of it.
        trees = set() if is_pruned else set(tree_references(event))
        for tree in trees:
            held = HeldTree(record.name, event.seq, event.kind == CHECKPOINT)
            known = self.trees.setdefault(tree, [])
            known.append(held)
            if len(known) == 1 and self._pattern is not None:
                self._tree(tree)
        if self._pattern is None:
            return
        self._check_names(record, event)
        hits = self._hits(event.payload)
        if hits:
            where, hints = zip(*hits, strict=True)
            found = FoundEvent(record.name, record.number, event.seq, event.kind, where, hints)
            self.events[record.number, event.seq] = found
        self._values(event_references(event, is_pruned=True))

    def _hits(self, value: Any) -> list[tuple[str, str]]:
        """Return where a value holds it, and a hint at what, at most once for each place."""
        assert self._pattern is not None  # noqa: S101 -- only called with one
        found: dict[Where, str] = {}
        for where, data in places(value):
            for match in self._pattern.matches(data):
                found.setdefault(where, mask(match[0]))
        return [(self._shown(where), hint) for where, hint in found.items()]

    def _shown(self, where: Where) -> str:
        assert self._pattern is not None  # noqa: S101 -- only called with one
        # A key may hold the secret itself.
        return "/".join("…" if self._pattern.is_in(key.encode()) else key for key in where)

    def _check_names(self, record: SessionRecord, event: Event) -> None:
        """Refuse an expression that matches names by which other things are found."""
        names = {"session": record.name, "agent": event.actor, "kind of event": event.kind}
        if event.kind in (CREATED, FORKED):
            names["key of a session"] = record.key or ""
            names["directory"] = str(event.payload.get("workspace") or "")
        coverage = event.payload.get("coverage")
        if isinstance(coverage, dict) and isinstance(coverage.get("root"), str):
            names["directory"] = coverage["root"]
        for what, name in names.items():
            self._refuse_name(
                what, name.encode(), f"#{event.seq} of session number {record.number}"
            )

    def _refuse_name(self, what: str, name: bytes, where: str) -> None:
        assert self._pattern is not None  # noqa: S101 -- only called with one
        if self._pattern.is_in(name):
            raise PurgeRefused(
                f"The regular expression matches the name of a {what}, in {where}. Names stay: "
                "other records refer to them.",
                hint="Nothing was changed. Narrow it down so that it only matches the secret.",
            )

    def _values(self, roots: Iterable[Digest]) -> None:
        """Walk values and what they refer to."""
        if self._pattern is None:
            return
        pending = list(roots)
        while pending:
            digest = pending.pop()
            if digest in self._walked:
                continue
            self._walked.add(digest)
            value = codec.decode(self._losses.load(digest))
            if self._hits(value):
                self.values.add(digest)
            pending += references(value)

    def _tree(self, tree: Digest) -> None:
        """Walk a tree: note its files, and look at the targets of symlinks and at attributes."""
        pending: list[tuple[Digest, TreePath]] = [(tree, ())]
        while pending:
            digest, path = pending.pop()
            if digest in self._walked:
                continue
            self._walked.add(digest)
            value = codec.decode(self._losses.load(digest))
            for file in tree_part(value, path, pending, self._losses.load):
                assert self.contents is not None  # noqa: S101 -- there is a pattern
                self.contents.add(file.chunks)
            self._attributes(digest, value, path)

    def _attributes(self, digest: Digest, value: Any, path: TreePath) -> None:
        for name in _names(value):
            self._refuse_name("file", name.encode(), shown(path) or "the top directory")
        if self._hits(value):
            self.values.add(digest)


def _names(value: Any) -> Iterator[str]:
    """Yield the names of files in a part of a tree."""
    if isinstance(value, MapBranch):
        for slot in value.slots:
            yield from _names(slot)
    elif isinstance(value, list) and value[:1] == [PATCH]:
        yield from _names(value[2])
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name
            if isinstance(item, dict | MapBranch):
                yield from _names(item)


class TreeHits:
    """Which paths of trees have a file with certain chunks; shared parts are looked at once."""

    def __init__(self, engine: Engine, chunks: set[Digest]) -> None:
        self._losses = KnownLosses(engine)
        self._chunks = chunks
        self._known: dict[Digest, tuple[TreePath, ...]] = {}

    def of(self, tree: Digest) -> list[TreePath]:
        """Return the paths in a tree, sorted."""
        return sorted({path for path in self._below(Ref(tree)) if path})

    def _below(self, value: Any) -> tuple[TreePath, ...]:
        if isinstance(value, Ref):
            if value.digest not in self._known:
                data = self._losses.load(value.digest)
                self._known[value.digest] = self._below(codec.decode(data))
            return self._known[value.digest]
        if isinstance(value, MapBranch):
            return tuple(path for slot in value.slots for path in self._below(slot))
        if isinstance(value, dict):
            return tuple(
                (name, *path)
                for name, item in value.items()
                if name != SELF
                for path in self._below(item)
            )
        if isinstance(value, list) and value[:1] == [PATCH]:
            return self._of_patch(value[1], value[2])
        if isinstance(value, list) and value[:1] == [FILE]:
            return (
                ((),) if self._chunks.intersection(file_chunks(self._losses.load, value[4])) else ()
            )
        return ()

    def _of_patch(self, base: Ref, entries: dict[str, Any]) -> tuple[TreePath, ...]:
        set_ = {tuple(key.split("/")): item for key, item in entries.items()}
        left = tuple(path for path in self._below(base) if path not in set_)
        return left + tuple(path for path, item in set_.items() if self._below(item))
