"""Searching the content of files: each chunk once, and each place where two chunks meet."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from mulligan.engine import Engine
from mulligan.errors import MissingObject, PurgedContent
from mulligan.model import Digest, ObjectKind
from mulligan.upkeep.purge.text import MAX_MATCH, Pattern

BATCH_CHUNKS = 256
"""How many chunks are read together, in the order of their locations."""

Chunks = tuple[Digest, ...]


class ContentSearch:
    """Which chunks hold a part of what a pattern matches, in any file that was added."""

    def __init__(self, engine: Engine, pattern: Pattern) -> None:
        self._engine = engine
        self._pattern = pattern
        self._known: set[Chunks] = set()
        self._ends: dict[Digest, tuple[bool, bool]] = {}
        self._new: set[Digest] = set()
        self._long: list[Chunks] = []
        self._borders: set[Chunks] = set()
        self.chunks: set[Digest] = set()
        """What was found."""

    def add(self, chunks: Chunks) -> None:
        """Add the content of a file."""
        if not chunks or chunks in self._known:
            return
        if len(chunks) > 1:
            self._known.add(chunks)
            self._long.append(chunks)
        for index, chunk in enumerate(chunks):
            before = self._ends.get(chunk, (False, False))
            now = (before[0] or index == 0, before[1] or index == len(chunks) - 1)
            if now != before or chunk not in self._ends:
                self._ends[chunk] = now
                self._new.add(chunk)

    def search(self) -> None:
        """Search what was added since the last time."""
        pending, self._new = list(self._new), set()
        for start in range(0, len(pending), BATCH_CHUNKS):
            self._search_chunks(pending[start : start + BATCH_CHUNKS])
        for chunks in self._long:
            for index in range(1, len(chunks)):
                # What is purged already is no part of any match, nor is what a collection removed
                # of a base tree.
                with suppress(PurgedContent, MissingObject):
                    self._search_border(chunks, index)
        self._long = []

    def _search_chunks(self, digests: Iterable[Digest]) -> None:
        for digest, data in self._engine.objects.get_all(ObjectKind.CHUNK, digests):
            is_first, is_last = self._ends[digest]
            for match in self._pattern.matches(data):
                # At the end of a chunk the pattern may match for the end alone; see the borders.
                if (match.start() or is_first) and (match.end() < len(data) or is_last):
                    self.chunks.add(digest)

    def _search_border(self, chunks: Chunks, index: int) -> None:
        """Search for what starts before a chunk and ends in it or after it."""
        first, before = self._nearby(chunks, range(index - 1, -1, -1))
        last, after = self._nearby(chunks, range(index, len(chunks)))
        border = chunks[first : last + 1]
        if border in self._borders:
            return
        self._borders.add(border)
        head, tail = b"".join(reversed(before))[-MAX_MATCH:], b"".join(after)[:MAX_MATCH]
        is_start = not first and len(head) == sum(map(len, before))
        is_end = last == len(chunks) - 1 and len(tail) == sum(map(len, after))
        for match in self._pattern.matches(head + tail):
            start, end = match.start() - len(head), match.end() - len(head)
            is_whole = (match.start() or is_start) and (end < len(tail) or is_end)
            if is_whole and start < 0 < end:
                self._add_until(chunks, range(index - 1, -1, -1), before, -start)
                self._add_until(chunks, range(index, len(chunks)), after, end)

    def _nearby(self, chunks: Chunks, indexes: range) -> tuple[int, list[bytes]]:
        """Return the chunks that a match could reach from a border, and the index of the last."""
        found: list[bytes] = []
        last = indexes[0]
        for index in indexes:
            if sum(map(len, found)) >= MAX_MATCH:
                break
            found.append(self._engine.objects.get(ObjectKind.CHUNK, chunks[index]))
            last = index
        return last, found

    def _add_until(self, chunks: Chunks, indexes: range, data: list[bytes], length: int) -> None:
        for index, part in zip(indexes, data, strict=False):
            if length <= 0:
                return
            self.chunks.add(chunks[index])
            length -= len(part)
