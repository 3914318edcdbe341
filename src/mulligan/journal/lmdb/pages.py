"""Checking the pages of LMDB's file without LMDB, which would trust them.

LMDB has no checksums of its own. A page that is not what it was written as (zeroed, from an older
copy, from another place) makes it fail an assertion or read outside of its map, and either ends the
process. So whoever has a reason to doubt a file walks it here first: every page that can be
reached is where it belongs, whole, in order and reached once; every count is right; no page is
both free and in use. The walk reads one commit, byte by byte, and never maps the file.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from itertools import islice, pairwise
from operator import lt
from typing import Any, NamedTuple

ALL = "*"
"""Stands for every table: the pages that lead to them are damaged."""

FREE = "free pages"
"""Stands for the list of free pages, which only writers need."""

# As LMDB 0.9 has it on a machine of 64 bits, in the machine's byte order.
_PAGE = struct.Struct("=QHHHH")
_NODE = struct.Struct("=HHHH")
_TREE = struct.Struct("=IHHQQQQQ")
_HEAD = struct.Struct("=IIQQ")
_TAIL = struct.Struct("=QQ")
_NUMBER = struct.Struct("=Q")
_COUNT = struct.Struct("=I")

_ORDER = sys.byteorder
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_METAS = 2
_SLACK = 1 << 20
_META_SIZE = _PAGE.size + _HEAD.size + 2 * _TREE.size + _TAIL.size
_NONE = 2**64 - 1
_MAX_DEPTH = 32
_MAX_KEY = 511
_BRANCH, _LEAF, _OVERFLOW, _META = 1, 2, 4, 8
_BIG, _TABLE = 1, 2


class Unreadable(Exception):
    """A page is not what it must be."""


class Tree(NamedTuple):
    """What LMDB notes of a tree: where it begins, and how much there is of everything."""

    pad: int
    flags: int
    depth: int
    branches: int
    leaves: int
    overflows: int
    entries: int
    root: int


class Commit(NamedTuple):
    """One of the two newest commits, as its meta page tells it."""

    number: int
    last_page: int
    page_size: int
    free: Tree
    main: Tree


def can_check() -> bool:
    """Whether the file has the layout here that this module knows."""
    return struct.calcsize("P") == 8


def commits(fd: int) -> list[Commit]:
    """Return the two newest commits of a file, the newest first; raises ``Unreadable``."""
    first = _commit(os.pread(fd, _META_SIZE, 0), 0)
    size = first.page_size
    if size & (size - 1) or not 256 <= size <= 0x8000:
        raise Unreadable(f"page 0 names a page size of {size}")
    second = _commit(os.pread(fd, _META_SIZE, size), 1)
    if second.page_size != size:
        raise Unreadable("its first two pages name different page sizes")
    return sorted((first, second), reverse=True, key=lambda commit: commit.number)


def _commit(data: bytes, number: int) -> Commit:
    if len(data) < _META_SIZE:
        raise Unreadable(f"page {number} is cut short")
    page, _, flags, _, _ = _PAGE.unpack_from(data)
    magic, version, _, _ = _HEAD.unpack_from(data, _PAGE.size)
    if (page, flags, magic, version) != (number, _META, _MAGIC, _VERSION):
        raise Unreadable(f"page {number} does not tell of a commit")
    at = _PAGE.size + _HEAD.size
    free, main = (Tree(*_TREE.unpack_from(data, at + n * _TREE.size)) for n in range(2))
    last, commit = _TAIL.unpack_from(data, at + 2 * _TREE.size)
    if commit and commit % 2 != number:
        raise Unreadable(f"page {number} tells of commit {commit}, which belongs on the other")
    return Commit(commit, last, free.pad, free, main)


def check(fd: int, commit: Commit) -> dict[str, str]:
    """Return what is wrong with the tables of a commit, by table; nothing if all is well."""
    return _Check(fd, commit).run()


class _Check:
    def __init__(self, fd: int, commit: Commit) -> None:
        self._fd = fd
        self._commit = commit
        self._size = commit.page_size
        self._used = bytearray()
        self._damage: dict[str, str] = {}

    def run(self) -> dict[str, str]:
        # A file may end before its last page, if that one was never written; not long before.
        pages, last = os.fstat(self._fd).st_size // self._size, self._commit.last_page
        if not _METAS - 1 <= last <= 2 * pages + _SLACK:
            return {ALL: f"{pages} pages are there of {last + 1}"}
        self._used = bytearray(last + 1)
        tables: list[tuple[bytes, bytes]] = []
        if self._walk(ALL, self._commit.main, tables):
            for name, record in tables:
                self._walk(name.decode(errors="replace"), Tree(*_TREE.unpack(record)), None)
        freed: list[tuple[bytes, bytes]] = []
        if self._walk(FREE, self._commit.free, freed):
            self._free(freed)
        return self._damage

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
        """Note that pages are in use, or free; each can be only once."""
        stop = page + count
        if page < _METAS or stop > len(self._used):
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
        self._is_main = name == ALL
        self._by_number = name == FREE
        self._counts = [0, 0, 0, 0]

    def run(self) -> None:
        tree = self._tree
        expected = [tree.branches, tree.leaves, tree.overflows, tree.entries]
        if tree.root == _NONE:
            if tree.depth or any(expected):
                raise Unreadable("it has entries and no first page")
            return
        if not 1 <= tree.depth <= _MAX_DEPTH:
            raise Unreadable(f"it has a depth of {tree.depth}")
        self._page(tree.root, 1, None, None)
        if self._counts != expected:
            raise Unreadable(f"{self._counts[3]} entries are there of {tree.entries}")

    def _page(self, number: int, depth: int, low: bytes | None, high: bytes | None) -> None:
        self._check.take(number)
        page = self._check.read(number)
        own, _, flags, lower, upper = _PAGE.unpack_from(page)
        is_leaf = depth == self._tree.depth
        if own != number or flags != (_LEAF if is_leaf else _BRANCH):
            raise Unreadable(f"page {number} is something else")
        if lower < _PAGE.size or lower % 2 or not lower <= upper <= self._size:
            raise Unreadable(f"page {number} has impossible bounds")
        offsets = struct.unpack_from(f"={(lower - _PAGE.size) // 2}H", page, _PAGE.size)
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
            first, second, third, length = _NODE.unpack_from(page, at)
            if at + _NODE.size + length > self._size:
                raise Unreadable(f"page {number} has an entry that leaves it")
            keys.append(page[at + _NODE.size : at + _NODE.size + length])
            children.append(first | second << 16 | third << 32)
            used += (_NODE.size + length + 1) & ~1
        # The first key of a branch is not looked at by LMDB, and mostly empty.
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
            first, second, flags, length = _NODE.unpack_from(page, at)
            start = at + _NODE.size + length
            size = first | second << 16
            end = start + (_NUMBER.size if flags & _BIG else size)
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
        if flags & ~(_BIG | (_TABLE if self._is_main else 0)) or flags == _BIG | _TABLE:
            raise Unreadable(f"page {number} has an entry of an unknown kind")
        data = self._large(page, size, start) if flags & _BIG else page[start : start + size]
        if self._is_main and (flags != _TABLE or size != _TREE.size):
            raise Unreadable(f"page {number} has an entry that is no table")
        if self._found is not None:
            self._found.append((key, data))

    def _large(self, page: bytes, size: int, start: int) -> bytes:
        """Check a value that has pages of its own; return it where somebody will look at it."""
        (first,) = _NUMBER.unpack_from(page, start)
        self._check.take(first)
        head = self._check.read(first)
        own, _, flags, _, _ = _PAGE.unpack_from(head)
        (count,) = _COUNT.unpack_from(head, 12)
        # More pages than it needs, if a larger value was there before.
        if (own, flags) != (first, _OVERFLOW) or count * self._size < _PAGE.size + size:
            raise Unreadable(f"page {first} is something else")
        self._check.take(first + 1, count - 1)
        self._counts[2] += count
        if self._found is None:
            return b""
        return self._check.read(first, count)[_PAGE.size : _PAGE.size + size]

    def _check_page(
        self,
        number: int,
        keys: list[bytes],
        low: bytes | None,
        high: bytes | None,
        *,
        is_filled: bool,
    ) -> None:
        """Refuse entries that overlap, or are not in order between those of the pages around."""
        if not is_filled:
            raise Unreadable(f"page {number} has entries that overlap")
        lengths = {len(key) for key in keys}
        if not 0 < min(lengths) <= max(lengths) <= _MAX_KEY:
            raise Unreadable(f"page {number} has an entry with an impossible key")
        order: list[Any] = [key for key in (*keys, high) if key is not None]
        least: Any = low
        if self._by_number:
            order = [int.from_bytes(key, _ORDER) for key in order]
            least = None if low is None else int.from_bytes(low, _ORDER)
        is_ordered = all(map(lt, order, islice(order, 1, None)))
        if not is_ordered or (least is not None and order[0] < least):
            raise Unreadable(f"page {number} is out of order")


def _page_list(key: bytes, data: bytes, newest: int) -> Iterator[int]:
    """Yield the pages that a commit freed; raises ``Unreadable``."""
    if len(data) % _NUMBER.size or len(data) < _NUMBER.size:
        raise Unreadable("a list of free pages is cut short")
    count, *pages = struct.unpack(f"={len(data) // _NUMBER.size}Q", data)
    commit = int.from_bytes(key, _ORDER)
    if len(key) != _NUMBER.size or count != len(pages) or not 1 <= commit <= newest:
        raise Unreadable("a list of free pages has a wrong head")
    if any(before <= after for before, after in pairwise(pages)):
        raise Unreadable("a list of free pages is out of order")
    yield from pages
