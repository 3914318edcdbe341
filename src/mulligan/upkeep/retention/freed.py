"""How many bytes of files checkpoints hold that no other one does.

Objects are stored together in frames. Of a frame, each object counts an equal part: what is freed
in the end may be less until packs are rewritten, and is never more than the frames.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from mulligan import codec
from mulligan.document.nodes import references
from mulligan.engine import Engine
from mulligan.model import DIGEST_SIZE, Digest, Location, ObjectKind
from mulligan.timeline.references import bare_digests
from mulligan.upkeep.space.mark import BATCH_OBJECTS, PAGE_ENTRIES


class TreeBytes:
    """Counts the objects of trees, each for the first tree that has it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen: set[Digest] = set()
        self._objects_of = self._count_frames()

    def add(self, tree: Digest | None) -> int:
        """Return the bytes of a tree that none before it has."""
        total = 0
        pending = [] if tree is None else [tree]
        while pending:
            new = self._new(pending[-BATCH_OBJECTS:])
            del pending[-BATCH_OBJECTS:]
            chunks: list[Digest] = []
            for _, data in self._engine.objects.get_all(ObjectKind.VALUE, new):
                value = codec.decode(data)
                chunks += _digests(bare_digests(value))
                pending += references(value)
            total += self._size([*new, *self._new(chunks)])
        return total

    def _new(self, digests: Iterable[Digest]) -> list[Digest]:
        new = [digest for digest in dict.fromkeys(digests) if digest not in self._seen]
        self._seen.update(new)
        return new

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
