"""How many bytes of files checkpoints hold that no other one does.

Objects are stored together in frames. Of a frame, each object counts an equal part: what is freed
in the end may be less until packs are rewritten, and is never more than the frames.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from mulligan import codec
from mulligan.document.nodes import references
from mulligan.engine import Engine
from mulligan.errors import MissingObject
from mulligan.model import DIGEST_SIZE, Digest, Location, ObjectKind
from mulligan.timeline.references import bare_digests
from mulligan.upkeep.space.mark import BATCH_OBJECTS, PAGE_ENTRIES
from mulligan.workspace.capture.base_parts import base_parts
from mulligan.workspace.capture.patch import is_patch


class TreeBytes:
    """Counts the objects of trees, each for the first tree that has it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._counted: set[Digest] = set()
        self._walked: set[Digest] = set()
        self._hidden: dict[Digest, dict[str, bytes]] = {}
        """By the bases of patches: the files of each that every patch to it so far sets."""
        self._objects_of = self._count_frames()

    def add(self, tree: Digest | None) -> int:
        """Return the bytes of a tree that none before it has."""
        if tree is None or tree in self._walked:
            return 0
        for _, data in self._engine.objects.get_all(ObjectKind.VALUE, [tree]):
            if is_patch(value := codec.decode(data)):
                self._walked.add(tree)
                _, base, entries = value
                return self._count([tree]) + self._value(entries) + self._base(base.digest, entries)
        return self._walk([tree])

    def _base(self, base: Digest, entries: dict[str, Any]) -> int:
        """Return the bytes of what a patch has of its base: no content of files that it sets."""
        known = self._hidden.get(base)
        if known is not None:
            shown = [known.pop(path) for path in known.keys() - entries.keys()]
            return self._count(_digests(shown))
        try:
            parts = base_parts(base, entries, self._engine.load)
        except MissingObject:
            return self._walk([base])  # what it sets cannot be told from the rest
        self._hidden[base] = parts.hidden
        # Counted and not walked: another tree may have all that these refer to.
        return self._count(parts.opened) + sum(map(self._value, parts.whole))

    def _value(self, value: Any) -> int:
        total = self._count(_digests(bare_digests(value)))
        return total + self._walk(references(value))

    def _walk(self, digests: Iterable[Digest]) -> int:
        total, pending = 0, list(digests)
        while pending:
            new = [d for d in dict.fromkeys(pending[-BATCH_OBJECTS:]) if d not in self._walked]
            del pending[-BATCH_OBJECTS:]
            self._walked.update(new)
            chunks: list[Digest] = []
            for _, data in self._engine.objects.get_all(ObjectKind.VALUE, new):
                value = codec.decode(data)
                chunks += _digests(bare_digests(value))
                pending += references(value)
            total += self._count([*new, *chunks])
        return total

    def _count(self, digests: Iterable[Digest]) -> int:
        """Return the bytes of the objects that were not counted before."""
        new = [digest for digest in dict.fromkeys(digests) if digest not in self._counted]
        self._counted.update(new)
        return self._size(new) if new else 0

    def _size(self, digests: list[Digest]) -> int:
        with self._engine.read() as view:
            found = view.locate_all(digests)
        return sum(
            place.length // self._objects_of.get(_frame(place), 1) for place in found.values()
        )

    def _count_frames(self) -> Counter[int]:
        """Return how many objects each frame has, from the index, in short snapshots.

        Copies of events do not count: they are small, and lie in the frames of their checkpoints.
        """
        counted: Counter[int] = Counter()
        with self._engine.read() as view:
            copies = {copy.digest for copy in view.copies()}
        last: Digest | None = None
        while page := self._page(last):
            counted.update(_frame(place) for digest, place in page if digest not in copies)
            last = page[-1][0]
        return counted

    def _page(self, after: Digest | None) -> list[tuple[Digest, Location]]:
        page: list[tuple[Digest, Location]] = []
        with self._engine.read() as view:
            for entry in view.locations(after):
                page.append(entry)
                if len(page) == PAGE_ENTRIES:
                    break
        return page


def _frame(place: Location) -> int:
    return place.area << 48 | place.offset


def _digests(listed: Iterable[bytes]) -> Iterator[Digest]:
    for joined in listed:
        for start in range(0, len(joined), DIGEST_SIZE):
            yield Digest(joined[start : start + DIGEST_SIZE])
