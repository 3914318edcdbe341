"""Where the bytes of a store are: by kind, by session, by path.

An object counts its share of the frame that it is stored in. What several sessions hold is counted
once, as shared. Memory: about 24 bytes for each object, and the names of files.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import nlargest
from itertools import islice
from pathlib import Path

import msgspec

from mulligan import codec
from mulligan.document.nodes import references
from mulligan.engine import Engine
from mulligan.errors import DamageError
from mulligan.journal.protocol import View
from mulligan.model import Digest, Location, ObjectKind, SessionRecord
from mulligan.store import Store, engine_of
from mulligan.timeline.references import event_references, tree_references
from mulligan.upkeep.known_lost import KnownLosses
from mulligan.upkeep.retention.policy import read_policy
from mulligan.upkeep.retention.prune import Pruner
from mulligan.upkeep.space.deleted import last_needed
from mulligan.upkeep.space.mark import BATCH_OBJECTS, PAGE_ENTRIES, PAGE_EVENTS, is_pruned
from mulligan.upkeep.tree_walk import Pending, tree_part
from mulligan.workspace.entries import TreePath, shown

LARGEST = 10
"""How many paths are named."""

_NOBODY, _SHARED, _COPY = 0, 0xFFFFFFFF, 0xFFFFFFFE


class SessionUsage(msgspec.Struct, frozen=True):
    """The bytes that only this session holds, and the number of its own events."""

    session: str
    files: int
    state: int
    events: int


class PathUsage(msgspec.Struct, frozen=True):
    """The stored bytes of all versions of a file that are there once."""

    path: str
    bytes: int


class Usage(msgspec.Struct, frozen=True):
    """Where the bytes of a store are, as they occupy the disk.

    ``copies`` are those of events, ``garbage`` is what nothing refers to, and ``other`` what is
    neither in packs nor in the journal. ``shared_files`` and ``shared_state`` are held by several
    sessions. ``prunable_count`` is how many checkpoints the next prune would remove, and
    ``prunable`` what only they hold.
    """

    total: int
    files: int
    state: int
    copies: int
    journal: int
    garbage: int
    other: int
    shared_files: int
    shared_state: int
    sessions: tuple[SessionUsage, ...]
    paths: tuple[PathUsage, ...]
    prunable: int
    prunable_count: int


def disk_usage(store: Store, largest: int = LARGEST) -> Usage:
    """Return where the bytes of a store are, and what the next prune would free."""
    engine = engine_of(store)
    with engine.pin():
        counting = _Counting(engine)
        counting.run()
        return counting.usage(largest)


class _Sizes:
    """Who holds each object, and the bytes that it takes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._prefixes = array("Q")
        self._frames = array("Q")
        lengths: dict[int, int] = {}
        for digest, place in _index(engine):
            self._prefixes.append(int.from_bytes(digest[:8], "big"))
            self._frames.append(_frame(place))
            lengths[_frame(place)] = place.length
        self._sizes = array("I", bytes(4 * len(self._prefixes)))
        self._owners = array("I", bytes(4 * len(self._prefixes)))
        for frame, length in sorted(lengths.items()):
            self._divide(frame, length)

    def _divide(self, frame: int, length: int) -> None:
        """Divide the bytes of a frame among its objects, by their lengths."""
        location = Location(frame >> 48, frame & (1 << 48) - 1, length, 0)
        try:
            entries = self._engine.objects.entries_at(location, -1) or ()
        except DamageError:
            return  # what is damaged counts as garbage; `verify` reports it
        total = sum(entry.length for entry in entries)
        for entry in entries:
            at = self._place(entry.digest)
            # It may be stored in several frames; the index leads to one of them.
            if at is not None and self._frames[at] == frame:
                self._sizes[at] = length * entry.length // max(1, total)

    def visit(self, digest: Digest, session: int) -> tuple[bool, int, int]:
        """Note that a session holds an object.

        Returns whether its parts are to be visited, its bytes, and who held it before.
        """
        at = self._place(digest)
        if at is None:
            return False, 0, _NOBODY
        before = self._owners[at]
        if before in (session, _SHARED):
            return False, 0, before
        self._owners[at] = session if before == _NOBODY else _SHARED
        return True, self._sizes[at], before

    def _place(self, digest: Digest) -> int | None:
        prefix = int.from_bytes(digest[:8], "big")
        at = bisect_left(self._prefixes, prefix)
        return at if at < len(self._prefixes) and self._prefixes[at] == prefix else None


class _Counting:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._losses = KnownLosses(engine)
        self._sizes = _Sizes(engine)
        self._files: Counter[int] = Counter()
        self._state: Counter[int] = Counter()
        self._paths: Counter[TreePath] = Counter()
        self._records: list[SessionRecord] = []
        self._events: Counter[int] = Counter()
        self._copies = 0

    def run(self) -> None:
        """Visit everything that the sessions hold, in short snapshots."""
        with self._engine.read() as view:
            records = view.sessions()
            left = [stone.replacement for _, stone in view.buried_objects() if stone.replacement]
            # What is left of a deleted session is there for its forks; the rest is garbage.
            needed = {r.number: last_needed(view, r) for r in records if r.deleted is not None}
            copies = [copy.digest for copy in view.copies()]
        self._records = [record for record in records if record.deleted is None]
        for record in records:
            self._session(record, needed.get(record.number), _holder(record, records))
        for digest in copies:
            self._copies += self._sizes.visit(digest, _COPY)[1]
        # What purges left is reached by no reference; it counts as a part of the first session.
        if self._records:
            self._walk_values(left, self._records[0].number)

    def usage(self, largest: int) -> Usage:
        """Return the result."""
        files, state = sum(self._files.values()), sum(self._state.values())
        packs, journal, other = self._on_disk()
        pruned, count = self._prunable()
        return Usage(
            total=packs + journal + other,
            files=files,
            state=state,
            copies=self._copies,
            journal=journal,
            garbage=max(0, packs - files - state - self._copies),
            other=other,
            shared_files=self._files[_SHARED],
            shared_state=self._state[_SHARED],
            sessions=tuple(self._of_session(record) for record in self._records),
            paths=tuple(
                PathUsage(shown(path), size)
                for path, size in nlargest(largest, self._paths.items(), key=lambda item: item[1])
            ),
            prunable=pruned,
            prunable_count=count,
        )

    def _of_session(self, record: SessionRecord) -> SessionUsage:
        number = record.number
        return SessionUsage(
            record.name, self._files[number], self._state[number], self._events[number]
        )

    def _on_disk(self) -> tuple[int, int, int]:
        """Return the bytes of packs, of the journal and of everything else."""
        directory = self._engine.directory
        if directory is None:
            objects = self._engine.objects
            return sum(map(objects.area_usage, objects.areas())), 0, 0
        packs, journal = _on_disk(directory / "packs"), _on_disk(directory / "journal")
        return packs, journal, _on_disk(directory) - packs - journal

    def _prunable(self) -> tuple[int, int]:
        directory = self._engine.directory
        if directory is None:
            return 0, 0
        plan = Pruner(self._engine, read_policy(directory)).plan(count_bytes=True)
        return plan.freed or 0, len(plan.plan.remove)

    def _session(self, record: SessionRecord, end: int | None, holder: int) -> None:
        """Count what the events of a session up to ``end`` hold, for a session of that number."""
        first = (record.origin.seq if record.origin else 0) + 1
        while True:
            with self._engine.read() as view:
                head = view.head(record.number).seq
                last = min(head if end is None else end, first + PAGE_EVENTS - 1)
                if first > last:
                    return
                values, trees = self._roots(view, record.number, first, last)
            self._walk_trees([(tree, ()) for tree in trees], holder)
            self._walk_values(values, holder)
            first = last + 1

    def _roots(
        self, view: View, number: int, first: int, last: int
    ) -> tuple[list[Digest], list[Digest]]:
        """Return the values and the trees that a page of a session's events refers to."""
        values: list[Digest] = []
        trees: list[Digest] = []
        for event in view.remaining(number, first, last):
            self._events[number] += 1
            if not is_pruned(view, number, event):
                trees += tree_references(event)
            values += event_references(event, is_pruned=True)
        values += [f.keyframe for f in view.folds(number) if first <= f.last <= last]
        seq = last
        while (keyframe := view.keyframe(number, seq)) is not None and keyframe[0] >= first:
            values.append(keyframe[1])
            seq = keyframe[0] - 1
        return values, trees

    def _walk_values(self, roots: Iterable[Digest], session: int) -> None:
        pending = list(roots)
        while pending:
            batch = pending[-BATCH_OBJECTS:]
            del pending[-BATCH_OBJECTS:]
            new = [digest for digest in batch if self._count(self._state, digest, session)]
            for _, data in self._engine.objects.get_all(ObjectKind.VALUE, new):
                pending += references(codec.decode(data))

    def _walk_trees(self, roots: Pending, session: int) -> None:
        pending = list(roots)
        while pending:
            batch = dict(pending[-BATCH_OBJECTS:])
            del pending[-BATCH_OBJECTS:]
            new = [digest for digest in batch if self._count(self._files, digest, session)]
            for digest, data in self._engine.objects.get_all(ObjectKind.VALUE, new):
                value = codec.decode(data)
                for file in tree_part(value, batch[digest], pending, self._losses.load):
                    for chunk in file.chunks:
                        self._count(self._files, chunk, session, file.path)

    def _count(
        self, kind: Counter[int], digest: Digest, session: int, path: TreePath | None = None
    ) -> bool:
        """Count an object for a session, or as shared; return whether its parts are to be."""
        is_new, size, before = self._sizes.visit(digest, session)
        if not is_new:
            return False
        if before == _NOBODY:
            kind[session] += size
            if path is not None:
                self._paths[path] += size
        else:
            kind[before] -= size
            kind[_SHARED] += size
        return True


def _holder(record: SessionRecord, records: Iterable[SessionRecord]) -> int:
    """Return the number of the session that holds what a session refers to: itself, or a fork."""
    if record.deleted is None:
        return record.number
    forks = (r for r in records if r.origin and r.origin.session == record.number)
    return next((r.number for r in forks if r.deleted is None), _SHARED)


def _index(engine: Engine) -> Iterator[tuple[Digest, Location]]:
    """Yield the index of objects, in short snapshots."""
    last: Digest | None = None
    while True:
        with engine.read() as view:
            page = list(islice(view.locations(last), PAGE_ENTRIES))
        if not page:
            return
        yield from page
        last = page[-1][0]


def _frame(place: Location) -> int:
    return place.area << 48 | place.offset


def _on_disk(directory: Path) -> int:
    """Return the bytes that the files of a directory take on the disk."""
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
            except FileNotFoundError:  # removed meanwhile
                continue
    return total
