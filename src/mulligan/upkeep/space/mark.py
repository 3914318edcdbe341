"""Marking: which objects the events, keyframes and folds of a store need.

The candidates are the objects that the index has at the start, at ten bytes of memory each. Two
objects whose digests start with the same eight bytes are kept together. Objects that are stored
later are no candidates. The journal lists them as fresh, and what they refer to is kept as well: an
object may be stored before the event that needs it.

A tree that is needed only as the base of patches is kept, without the content of files that all of
these patches replace or remove: see ``mulligan.workspace.capture.base_parts``.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from mulligan import codec
from mulligan.document.fold import CHECKPOINT
from mulligan.document.nodes import references
from mulligan.engine import Engine
from mulligan.errors import MissingObject
from mulligan.journal.protocol import View
from mulligan.model import DIGEST_SIZE, Digest, Event, ObjectKind, SessionRecord
from mulligan.timeline.references import bare_digests, tree_references
from mulligan.upkeep.known_lost import KnownLosses
from mulligan.workspace.capture.base_parts import base_parts
from mulligan.workspace.capture.patch import is_patch

PAGE_ENTRIES = 20_000
"""How many entries of the index are read within one snapshot."""

PAGE_EVENTS = 512
"""How many events are read within one snapshot."""

BATCH_OBJECTS = 2_048
"""How many objects are read together, in the order of their locations."""

_PREFIX = 8


class MarkSet:
    """The candidates, and which of them are needed.

    A candidate is *kept* when something refers to it, and *walked* when what it refers to itself is
    kept too. Bytes that look like a digest keep an object without walking it, so the two differ.
    """

    def __init__(self) -> None:
        self._prefixes = array("Q")
        self._twins: set[int] = set()
        self._kept = bytearray()
        self._walked = bytearray()
        self._walked_twins: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._prefixes)

    def add(self, digests: Iterable[Digest]) -> None:
        """Add candidates, in ascending order."""
        for digest in digests:
            prefix = _prefix(digest)
            if self._prefixes and self._prefixes[-1] == prefix:
                self._twins.add(prefix)
            else:
                self._prefixes.append(prefix)

    def freeze(self) -> None:
        """Start marking; no candidate is added from here on."""
        self._kept = bytearray(len(self._prefixes) // 8 + 1)
        self._walked = bytearray(len(self._prefixes) // 8 + 1)

    def keep(self, digest: bytes) -> bool:
        """Keep an object; return whether it is a candidate that was not kept before."""
        place = self._place(digest)
        return place is not None and _set(self._kept, place)

    def walk(self, digest: bytes) -> bool:
        """Return whether an object is a candidate that has to be walked now; only once for each."""
        place = self._place(digest)
        if place is None:
            return False
        if self._prefixes[place] in self._twins:
            # They share one bit, and each of them has to be walked.
            is_new = digest not in self._walked_twins
            self._walked_twins.add(digest)
            return is_new
        return _set(self._walked, place)

    def is_walked(self, digest: bytes) -> bool:
        """Whether an object is a candidate that was walked."""
        place = self._place(digest)
        if place is None:
            return False
        if self._prefixes[place] in self._twins:
            return digest in self._walked_twins
        return bool(self._walked[place >> 3] & 1 << (place & 7))

    def has(self, digest: bytes) -> bool:
        """Whether an object is a candidate."""
        return self._place(digest) is not None

    def is_garbage(self, digest: bytes) -> bool:
        """Whether an object is a candidate that was not kept."""
        place = self._place(digest)
        return place is not None and not self._kept[place >> 3] & 1 << (place & 7)

    def _place(self, digest: bytes) -> int | None:
        prefix = _prefix(digest)
        place = bisect_left(self._prefixes, prefix)
        if place == len(self._prefixes) or self._prefixes[place] != prefix:
            return None
        return place


def _set(bits: bytearray, place: int) -> bool:
    """Set a bit; return whether it was not set before."""
    mask = 1 << (place & 7)
    if bits[place >> 3] & mask:
        return False
    bits[place >> 3] |= mask
    return True


def _prefix(digest: bytes) -> int:
    return int.from_bytes(digest[:_PREFIX], "big")


def is_pruned(view: View, number: int, event: Event) -> bool:
    """Whether an event is a checkpoint that was pruned."""
    if event.kind != CHECKPOINT:
        return False
    pruned = view.pruned_before(number, event.seq)
    return pruned is not None and pruned[0] == event.seq


class _Roots(NamedTuple):
    """What events, keyframes and folds refer to: values, and the trees of files."""

    values: list[Digest]
    trees: list[Digest]


class _Base:
    """The base of patches: the paths that all of them set, and the files that it has there."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = set(paths)
        self.hidden: dict[str, bytes] = {}
        self.is_walked = False


class Marker:
    """Marks everything that a store needs, and later what was added to that."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.set = MarkSet()
        self._seen: dict[int, int] = {}
        self._fresh: set[Digest] = set()
        self._rescued: list[Digest] | None = None
        self._losses = KnownLosses(engine)
        self._bases: dict[Digest, _Base] = {}
        self._fresh_trees: set[Digest] = set()

    def collect_candidates(self) -> None:
        """Read the index, in short snapshots."""
        last: Digest | None = None
        while page := self.page_of_index(last):
            self.set.add(page)
            last = page[-1]
        self.set.freeze()

    def mark_all(self) -> None:
        """Mark what the events, keyframes and folds refer to."""
        with self._engine.read() as view:
            sessions = view.sessions()
            # What purges left takes the place of objects that the index does not have.
            left = [stone.replacement for _, stone in view.buried_objects() if stone.replacement]
            # Later ones are no candidates: no two copies are equal.
            for copy in view.copies():
                self._keep(copy.digest)
        self._walk(left)
        for record in sessions:
            while self._advance(record):
                pass
        # After all events: only then it is known what every patch to a base sets.
        for digest, base in self._bases.items():
            self._walk_base(digest, base)

    def catch_up(self, view: View) -> list[Digest]:
        """Mark what was committed since; return the candidates that turned out to be needed.

        ``view`` may be a write transaction: then nothing can be committed before its end.
        """
        rescued: list[Digest] = []
        self._rescued = rescued
        for record in view.sessions():
            first, head = self._next(record), view.head(record.number).seq
            if first <= head:
                self._mark(self._roots(view, record.number, first, head))
                self._seen[record.number] = head
        for digest, base in self._bases.items():
            self._walk_base(digest, base)
        fresh = [digest for digest in view.fresh() if digest not in self._fresh]
        self._fresh.update(fresh)
        # A tree that an event refers to is marked as one: a patch needs only a part of its base.
        self._walk_below(self._children([one for one in fresh if one not in self._fresh_trees]))
        self._rescued = None
        return rescued

    def behind(self, view: View) -> int:
        """Return how many events and fresh objects ``catch_up`` would read."""
        sessions = view.sessions()
        events = sum(view.head(record.number).seq + 1 - self._next(record) for record in sessions)
        return events + sum(1 for _ in view.fresh()) - len(self._fresh)

    def page_of_index(self, after: Digest | None) -> list[Digest]:
        """Return the digests of the index that follow one, as many as one snapshot should read."""
        page: list[Digest] = []
        with self._engine.read() as view:
            for digest, _ in view.locations(after):
                page.append(digest)
                if len(page) == PAGE_ENTRIES:
                    break
        return page

    def _next(self, record: SessionRecord) -> int:
        """Return the seq of the session's own next event to read."""
        return self._seen.get(record.number, record.origin.seq if record.origin else 0) + 1

    def _advance(self, record: SessionRecord) -> bool:
        """Mark the next page of a session's events; return whether there was one."""
        first = self._next(record)
        with self._engine.read() as view:
            last = min(view.head(record.number).seq, first + PAGE_EVENTS - 1)
            if first > last:
                return False
            roots = self._roots(view, record.number, first, last)
        self._mark(roots)
        self._seen[record.number] = last
        return True

    def _roots(self, view: View, number: int, first: int, last: int) -> _Roots:
        """Return what the session's own events, keyframes and folds in a range refer to."""
        roots = _Roots([], [])
        for event in view.remaining(number, first, last):
            roots.values.extend(references(event.payload))
            if not is_pruned(view, number, event):
                roots.trees.extend(tree_references(event))
        folds = [fold for fold in view.folds(number) if first <= fold.last <= last]
        roots.values.extend(fold.keyframe for fold in folds)
        seq = last
        while (keyframe := view.keyframe(number, seq)) is not None and keyframe[0] >= first:
            roots.values.append(keyframe[1])
            seq = keyframe[0] - 1
        return roots

    def _mark(self, roots: _Roots) -> None:
        self._walk(roots.values)
        trees = list(dict.fromkeys(roots.trees))
        for data in self._values([tree for tree in trees if self._refer(tree)]):
            self._tree(codec.decode(data))
        fresh = {tree for tree in trees if not self.set.has(tree)} - self._fresh_trees
        for tree, data in self._engine.objects.get_all(ObjectKind.VALUE, fresh):
            self._fresh_trees.add(tree)
            self._tree(codec.decode(data))

    def _tree(self, value: Any) -> None:
        """Keep what a tree refers to; the base of a patch is walked when all patches are known."""
        if not is_patch(value):
            self._walk_value(value)
            return
        _, base, entries = value
        self._walk_value(entries)
        known = self._bases.setdefault(base.digest, _Base(entries))
        known.paths &= entries.keys()
        for path in known.hidden.keys() - entries.keys():
            self._keep_chunks(known.hidden.pop(path))

    def _walk_base(self, digest: Digest, base: _Base) -> None:
        """Keep a base, and all content that is not hidden by every patch to it."""
        if base.is_walked or self.set.is_walked(digest):
            return
        base.is_walked = True
        try:
            parts = base_parts(digest, base.paths, self._engine.load)
        except MissingObject:
            # A part of it is lost, so what a patch hides cannot be told: all that is left stays.
            self._walk([digest])
            return
        base.hidden.update(parts.hidden)
        # Not as walked: another tree may need all that these refer to.
        for opened in parts.opened:
            self._keep(opened)
        for value in parts.whole:
            self._walk_value(value)

    def _walk(self, roots: Iterable[Digest]) -> None:
        """Keep objects and everything below them."""
        self._walk_below([digest for digest in roots if self._refer(digest)])

    def _walk_below(self, pending: list[Digest]) -> None:
        while pending:
            batch = pending[-BATCH_OBJECTS:]
            del pending[-BATCH_OBJECTS:]
            pending += self._children(batch)

    def _children(self, digests: list[Digest]) -> list[Digest]:
        """Keep what objects refer to; return what has to be walked in turn."""
        found: list[Digest] = []
        for data in self._values(digests):
            found += self._inside(codec.decode(data))
        return found

    def _walk_value(self, value: Any) -> None:
        """Keep what a value refers to, and everything below it."""
        self._walk_below(self._inside(value))

    def _inside(self, value: Any) -> list[Digest]:
        for listed in bare_digests(value):
            self._keep_chunks(listed)
        return [digest for digest in references(value) if self._refer(digest)]

    def _keep_chunks(self, listed: bytes) -> None:
        for start in range(0, len(listed), DIGEST_SIZE):
            self._keep(listed[start : start + DIGEST_SIZE])

    def _refer(self, digest: Digest) -> bool:
        self._keep(digest)
        return self.set.walk(digest)

    def _keep(self, digest: bytes) -> None:
        if self.set.keep(digest) and self._rescued is not None:
            self._rescued.append(Digest(digest))

    def _values(self, digests: list[Digest]) -> Iterator[bytes]:
        """Yield the objects of values; raises an error for one that cannot be read.

        What a damaged object refers to is unknown, so nothing could be removed safely.
        """
        missing = set(digests)
        for digest, data in self._engine.objects.get_all(ObjectKind.VALUE, digests):
            missing.discard(digest)
            yield data
        for digest in missing:
            yield self._losses.load(digest)
