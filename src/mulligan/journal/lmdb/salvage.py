"""Reading the records of a damaged file page by page, without LMDB and without its trees.

Every page that is a leaf is taken apart, wherever it lies: pages of the newest commit, and pages
that LMDB has freed and not yet used again, which hold older versions. So a damaged page costs the
records on it and nothing else. Which table a record belongs to is found from the record itself:
its checksum covers the name of its table, and events prove their places by their hashes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from mulligan.journal.lmdb import layout
from mulligan.journal.lmdb.layout import (
    BIG,
    BRANCH,
    COUNT,
    LEAF,
    MAX_DEPTH,
    MAX_KEY,
    META_PAGES,
    NO_PAGE,
    NODE,
    NUMBER,
    OVERFLOW,
    OVERFLOW_COUNT,
    PAGE,
    SUBTREE,
    TREE,
    Tree,
)
from mulligan.journal.records import RawRecord

PAGE_SIZES = (4096, 8192, 16384, 32768)
"""The page sizes that are tried if no meta page names one."""


def read_records(file: Path) -> Iterator[RawRecord]:
    """Yield every record on every leaf page of a file; nothing if there is no file.

    Those on pages that the newest commit leads to are current. What cannot be read is passed over:
    this never raises for damage.
    """
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        yield from _Salvage(fd).records()
    finally:
        os.close(fd)


def is_whole(file: Path) -> bool:
    """Whether every page of a file can be what LMDB wrote, but for the two that name its commits.

    Then ``read_records`` passes over none, and the newest version of a record is among those found.
    Stale parts of large values count as damage, so a sound file may be taken for a damaged one.
    """
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return _Salvage(fd).is_whole()
    finally:
        os.close(fd)


class _Salvage:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._commits = list(_readable_commits(fd))
        self._size = self._commits[0].page_size if self._commits else _likely_page_size(fd)
        self._pages = -(-os.fstat(fd).st_size // self._size)
        self._current: set[int] = set()

    def records(self) -> Iterator[RawRecord]:
        if self._commits:
            self._find_current(self._commits[0])
        for number in range(META_PAGES if self._commits else 0, self._pages):
            page = self._read(number)
            for key, value in self._leaf(page):
                yield RawRecord(key, value, number in self._current)

    def is_whole(self) -> bool:
        if not self._commits or self._pages <= self._commits[0].last_page:
            return False
        number = META_PAGES
        while number < self._pages:
            page = self._read(number)
            if len(page) < self._size:
                return False
            own, _, flags, *_ = PAGE.unpack_from(page)
            if own != number or flags not in (LEAF, BRANCH, OVERFLOW):
                return False
            number += max(1, COUNT.unpack_from(page, OVERFLOW_COUNT)[0]) if flags == OVERFLOW else 1
        return number == self._pages

    def _find_current(self, commit: layout.Commit) -> None:
        """Note the leaves that the newest commit leads to, as far as its branches are readable."""
        tables: list[Tree] = []
        self._descend(commit.main, tables)
        for table in tables:
            self._descend(table, None)

    def _descend(self, tree: Tree, tables: list[Tree] | None) -> None:
        pending = [(tree.root, 1)] if tree.root != NO_PAGE else []
        while pending:
            number, depth = pending.pop()
            if number in self._current or number >= self._pages or depth > MAX_DEPTH:
                continue
            page = self._read(number)
            flags = PAGE.unpack_from(page)[2] if len(page) >= PAGE.size else 0
            if flags == LEAF:
                self._current.add(number)
                if tables is not None:
                    tables += _tables_on(page)
            elif flags == BRANCH:
                pending += [(child, depth + 1) for child in _children(page)]

    def _read(self, number: int, count: int = 1) -> bytes:
        try:
            return os.pread(self._fd, count * self._size, number * self._size)
        except OSError:
            return b""  # the disk cannot read it

    def _leaf(self, page: bytes) -> Iterator[tuple[bytes, bytes]]:
        if len(page) < PAGE.size or PAGE.unpack_from(page)[2] != LEAF:
            return
        for at in _offsets(page):
            if at + NODE.size > len(page):
                continue
            first, second, flags, length = NODE.unpack_from(page, at)
            start, size = at + NODE.size + length, first | second << 16
            if not 0 < length <= MAX_KEY or start > len(page) or flags & ~BIG:
                continue
            value = self._large(page, start, size) if flags else page[start : start + size]
            if len(value) == size:
                yield page[start - length : start], value

    def _large(self, page: bytes, start: int, size: int) -> bytes:
        """Return a value that has pages of its own, empty if they are not what they must be."""
        if start + NUMBER.size > len(page):
            return b""
        (first,) = NUMBER.unpack_from(page, start)
        count = -(-(PAGE.size + size) // self._size)
        if first + count > self._pages:
            return b""
        data = self._read(first, count)
        if len(data) < PAGE.size + size or PAGE.unpack_from(data)[2] != OVERFLOW:
            return b""
        return data[PAGE.size : PAGE.size + size]


def _readable_commits(fd: int) -> Iterator[layout.Commit]:
    """Yield the commits whose meta pages are readable, the newest first."""
    try:
        yield from layout.commits(fd)
    except layout.Unreadable:
        yield from layout.single_commits(fd, PAGE_SIZES)


def _likely_page_size(fd: int) -> int:
    """Return the page size for which the most pages have their own number."""

    def hits(size: int) -> int:
        pages = os.fstat(fd).st_size // size
        heads = (os.pread(fd, NUMBER.size, number * size) for number in range(pages))
        own = (number for number, head in enumerate(heads) if head == NUMBER.pack(number))
        return sum(1 for _ in own) * size

    return max(PAGE_SIZES, key=hits)


def _offsets(page: bytes) -> tuple[int, ...]:
    lower = PAGE.unpack_from(page)[3]
    count = (min(lower, len(page)) - PAGE.size) // 2
    return struct.unpack_from(f"={count}H", page, PAGE.size) if count > 0 else ()


def _children(page: bytes) -> Iterator[int]:
    for at in _offsets(page):
        if at + NODE.size <= len(page):
            first, second, third, _ = NODE.unpack_from(page, at)
            yield first | second << 16 | third << 32


def _tables_on(page: bytes) -> Iterator[Tree]:
    for at in _offsets(page):
        if at + NODE.size > len(page):
            continue
        _, _, flags, length = NODE.unpack_from(page, at)
        start = at + NODE.size + length
        if flags == SUBTREE and start + TREE.size <= len(page):
            yield Tree(*TREE.unpack_from(page, start))
