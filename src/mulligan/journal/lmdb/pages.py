"""Checking the pages of LMDB's file without LMDB, which would trust them.

LMDB has no checksums of its own. A damaged page (zeroed, from an older copy, from another place)
makes it fail an assertion or read outside its map, and either ends the process. So a file in doubt
is walked here first: every reachable page is where it belongs, complete, in order and reached once;
every count is right; no page is both free and in use. The walk reads one commit and never maps the
file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from operator import lt
from typing import Any

from mulligan.journal.lmdb.layout import (
    BIG,
    BRANCH,
    BYTE_ORDER,
    COUNT,
    INTEGER_KEYS,
    LEAF,
    MAX_DEPTH,
    MAX_KEY,
    META_PAGES,
    NO_PAGE,
    NODE,
    NUMBER,
    OVERFLOW,
    PAGE,
    SUBTREE,
    TREE,
    Commit,
    Tree,
    Unreadable,
)
from mulligan.journal.protocol import ALL_TABLES, LATER_TABLES, TABLES

FREE = "free pages"
"""The name of the list of free pages, which only writers need."""

_SLACK = 1 << 20
"""Pages that may be missing at the end of a file: LMDB counts some that were never written."""


def check(fd: int, commit: Commit, known: Iterable[str] = TABLES) -> dict[str, str]:
    """Return what is wrong with the tables of a commit, by table; empty if all are sound.

    A table that is not known is damage, and so is a missing one that every journal has.
    """
    return _Check(fd, commit, frozenset(known)).run()


class _Check:
    def __init__(self, fd: int, commit: Commit, known: frozenset[str]) -> None:
        self._fd = fd
        self._commit = commit
        self._known = known
        self._size = commit.page_size
        self._used = bytearray()
        self._damage: dict[str, str] = {}

    def run(self) -> dict[str, str]:
        # A file may end shortly before its last page, if that page was never written.
        pages, last = os.fstat(self._fd).st_size // self._size, self._commit.last_page
        # Also bounds the table below: a damaged number must not exhaust the memory.
        if not META_PAGES - 1 <= last <= 2 * pages + _SLACK:
            return {ALL_TABLES: f"{pages} pages are there of {last + 1}"}
        self._used = bytearray(last + 1)
        tables: list[tuple[bytes, bytes]] = []
        if self._walk(ALL_TABLES, self._commit.main, tables) and self._names(tables):
            for name, record in tables:
                self._walk(name.decode(), Tree(*TREE.unpack(record)), None)
        freed: list[tuple[bytes, bytes]] = []
        if self._walk(FREE, self._commit.free, freed):
            self._free(freed)
        return self._damage

    def _names(self, tables: list[tuple[bytes, bytes]]) -> bool:
        """Whether the tables are those of a journal.

        A flipped bit in a name hides a table: LMDB would make a new, empty one in its place.
        """
        names = {name.decode(errors="backslashreplace") for name, _ in tables}
        if unknown := sorted(names - self._known):
            self._damage[ALL_TABLES] = f"there is a table {unknown[0]!r}, which no journal has"
        elif names:  # a journal that was never written to has none
            missing = self._known - LATER_TABLES - names
            self._damage.update(dict.fromkeys(missing, "it is missing"))
        return not unknown

    def _walk(self, name: str, tree: Tree, found: list[tuple[bytes, bytes]] | None) -> bool:
        try:
            _Walk(self, name, tree, found).run()
        except Unreadable as error:
            self._damage[name] = str(error)
            return False
        except OSError as error:
            self._damage[name] = f"a page cannot be read: {error.strerror}"
            return False
        return True

    def _free(self, records: list[tuple[bytes, bytes]]) -> None:
        try:
            for key, data in records:
                pages = _page_list(key, data, self._commit.number)
                for page in pages:
                    self.take(page)
        except Unreadable as error:
            self._damage[FREE] = str(error)

    def take(self, page: int, count: int = 1) -> None:
        """Record that pages are in use, or free; each page only once."""
        stop = page + count
        if page < META_PAGES or stop > len(self._used):
            raise Unreadable(f"there is no page {page}")
        if any(self._used[page:stop]):
            raise Unreadable(f"page {page} is used twice")
        self._used[page:stop] = b"\x01" * count

    def read(self, page: int, count: int = 1) -> bytes:
        data = os.pread(self._fd, count * self._size, page * self._size)
        if len(data) != count * self._size:
            raise Unreadable(f"page {page} is cut short")
        return data


class _Walk:
    """Walks one tree from its root."""

    def __init__(
        self, check: _Check, name: str, tree: Tree, found: list[tuple[bytes, bytes]] | None
    ) -> None:
        self._check = check
        self._size = check._size
        self._tree = tree
        self._found = found
        self._is_main = name == ALL_TABLES
        self._by_number = name == FREE
        self._counts = [0, 0, 0, 0]

    def run(self) -> None:
        tree = self._tree
        expected = [tree.branches, tree.leaves, tree.overflows, tree.entries]
        # Only the list of free pages has either: keys that are numbers, and the page size as pad.
        if (tree.flags, tree.pad) != ((INTEGER_KEYS, self._size) if self._by_number else (0, 0)):
            raise Unreadable("it is a tree of an unknown kind")
        if tree.root == NO_PAGE:
            if tree.depth or any(expected):
                raise Unreadable("it has entries and no first page")
            return
        if not 1 <= tree.depth <= MAX_DEPTH:
            raise Unreadable(f"it has a depth of {tree.depth}")
        self._page(tree.root, 1, None, None)
        if self._counts != expected:
            raise Unreadable(f"{self._counts[3]} entries are there of {tree.entries}")

    def _page(self, number: int, depth: int, low: bytes | None, high: bytes | None) -> None:
        self._check.take(number)
        page = self._check.read(number)
        own, _, flags, lower, upper = PAGE.unpack_from(page)
        is_leaf = depth == self._tree.depth
        if own != number or flags != (LEAF if is_leaf else BRANCH):
            raise Unreadable(f"page {number} is something else")
        if lower < PAGE.size or lower % 2 or not lower <= upper <= self._size:
            raise Unreadable(f"page {number} has impossible bounds")
        offsets = struct.unpack_from(f"={(lower - PAGE.size) // 2}H", page, PAGE.size)
        if len(offsets) < (1 if is_leaf else 2) or min(offsets) < upper:
            raise Unreadable(f"page {number} has an impossible index")
        try:
            if is_leaf:
                self._leaf(page, number, offsets, upper, low, high)
            else:
                self._branch(page, number, offsets, upper, depth, low, high)
        except struct.error as error:
            raise Unreadable(f"page {number} has an entry that leaves it") from error

    def _branch(
        self,
        page: bytes,
        number: int,
        offsets: tuple[int, ...],
        upper: int,
        depth: int,
        low: bytes | None,
        high: bytes | None,
    ) -> None:
        self._counts[0] += 1
        keys: list[bytes] = []
        children: list[int] = []
        used = 0
        for at in offsets:
            first, second, third, length = NODE.unpack_from(page, at)
            if at + NODE.size + length > self._size:
                raise Unreadable(f"page {number} has an entry that leaves it")
            keys.append(page[at + NODE.size : at + NODE.size + length])
            children.append(first | second << 16 | third << 32)
            # LMDB aligns entries to two bytes.
            used += (NODE.size + length + 1) & ~1
        # LMDB ignores the first key of a branch, which is usually empty.
        self._check_page(number, keys[1:], low, high, is_filled=used == self._size - upper)
        bounds = [low, *keys[1:], high]
        for child, (start, stop) in zip(children, pairwise(bounds), strict=True):
            self._page(child, depth + 1, start, stop)

    def _leaf(
        self,
        page: bytes,
        number: int,
        offsets: tuple[int, ...],
        upper: int,
        low: bytes | None,
        high: bytes | None,
    ) -> None:
        self._counts[1] += 1
        self._counts[3] += len(offsets)
        keys: list[bytes] = []
        used = 0
        for at in offsets:
            first, second, flags, length = NODE.unpack_from(page, at)
            start = at + NODE.size + length
            size = first | second << 16
            end = start + (NUMBER.size if flags & BIG else size)
            used += (end - at + 1) & ~1
            keys.append(page[start - length : start])
            if end > self._size:
                raise Unreadable(f"page {number} has an entry that leaves it")
            if flags or self._found is not None:
                self._value(page, number, keys[-1], flags, size, start)
        self._check_page(number, keys, low, high, is_filled=used == self._size - upper)

    def _value(
        self, page: bytes, number: int, key: bytes, flags: int, size: int, start: int
    ) -> None:
        if flags & ~(BIG | (SUBTREE if self._is_main else 0)) or flags == BIG | SUBTREE:
            raise Unreadable(f"page {number} has an entry of an unknown kind")
        data = self._large(page, size, start) if flags & BIG else page[start : start + size]
        if self._is_main and (flags != SUBTREE or size != TREE.size):
            raise Unreadable(f"page {number} has an entry that is no table")
        if self._found is not None:
            self._found.append((key, data))

    def _large(self, page: bytes, size: int, start: int) -> bytes:
        """Check a value on its own pages; return it if the caller needs it."""
        (first,) = NUMBER.unpack_from(page, start)
        self._check.take(first)
        head = self._check.read(first)
        own, _, flags, _, _ = PAGE.unpack_from(head)
        # An overflow page has its number of pages where others have their bounds.
        (count,) = COUNT.unpack_from(head, 12)
        # It has spare pages if it replaced a larger value.
        if (own, flags) != (first, OVERFLOW) or count * self._size < PAGE.size + size:
            raise Unreadable(f"page {first} is something else")
        self._check.take(first + 1, count - 1)
        self._counts[2] += count
        if self._found is None:
            return b""
        return self._check.read(first, count)[PAGE.size : PAGE.size + size]

    def _check_page(
        self,
        number: int,
        keys: list[bytes],
        low: bytes | None,
        high: bytes | None,
        *,
        is_filled: bool,
    ) -> None:
        """Refuse entries that overlap, or are out of order with the neighbouring pages."""
        if not is_filled:
            raise Unreadable(f"page {number} has entries that overlap")
        lengths = {len(key) for key in keys}
        if not 0 < min(lengths) <= max(lengths) <= MAX_KEY:
            raise Unreadable(f"page {number} has an entry with an impossible key")
        order: list[Any] = [key for key in (*keys, high) if key is not None]
        least: Any = low
        if self._by_number:
            order = [int.from_bytes(key, BYTE_ORDER) for key in order]
            least = None if low is None else int.from_bytes(low, BYTE_ORDER)
        is_ordered = all(map(lt, order, islice(order, 1, None)))
        if not is_ordered or (least is not None and order[0] < least):
            raise Unreadable(f"page {number} is out of order")


def _page_list(key: bytes, data: bytes, newest: int) -> Iterator[int]:
    """Yield the pages that a commit freed; raises ``Unreadable``."""
    if len(data) % NUMBER.size or len(data) < NUMBER.size:
        raise Unreadable("a list of free pages is cut short")
    count, *pages = struct.unpack(f"={len(data) // NUMBER.size}Q", data)
    commit = int.from_bytes(key, BYTE_ORDER)
    if len(key) != NUMBER.size or count != len(pages) or not 1 <= commit <= newest:
        raise Unreadable("a list of free pages has a wrong head")
    if any(before <= after for before, after in pairwise(pages)):
        raise Unreadable("a list of free pages is out of order")
    yield from pages
