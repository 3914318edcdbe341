"""The layout of LMDB's two files, as far as we read them without LMDB.

LMDB does not guarantee this layout. So all of it is in this module, it is valid only for LMDB 0.9,
and every use first checks that the layout is known: ``has_known_pages`` and ``has_known_lock``. If
it is not, pages are not checked and the owner of the write lock is not named; the rest works.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

import lmdb
import msgspec

VERSION = (0, 9)
"""The version of LMDB with this layout; patch releases do not change it."""

# data.mdb, on a 64-bit machine, in the machine's byte order.
PAGE = struct.Struct("=QHHHH")
NODE = struct.Struct("=HHHH")
TREE = struct.Struct("=IHHQQQQQ")
_META_HEAD = struct.Struct("=IIQQ")
_META_TAIL = struct.Struct("=QQ")
NUMBER = struct.Struct("=Q")
COUNT = struct.Struct("=I")
OVERFLOW_COUNT = 12
"""Where the first page of a large value has the number of its pages."""

BYTE_ORDER = sys.byteorder
_MAGIC, _DATA_VERSION = 0xBEEFC0DE, 1
META_PAGES = 2
_META_SIZE = PAGE.size + _META_HEAD.size + 2 * TREE.size + _META_TAIL.size
NO_PAGE = 2**64 - 1
MAX_DEPTH = 32
MAX_KEY = 511
BRANCH, LEAF, OVERFLOW, META = 1, 2, 4, 8
"""Flags of pages."""
BIG, SUBTREE = 1, 2
"""Flags of entries: the value has pages of its own; it describes a tree."""
INTEGER_KEYS = 8
"""The flag of a tree whose keys are numbers of the machine."""

# lock.mdb, with the mutexes of glibc on x86-64.
_LOCK_HEAD = struct.Struct("=II")
_LOCK_FORMAT = 1 | 1 << 16
"""Version 1 of the lock file, with process locks."""
_WRITE_MUTEX = 64
"""Where the writers' mutex is, on a cache line of its own."""
_MUTEX_WORD = struct.Struct("=I")
_OWNER_BITS = 0x3FFFFFFF
"""The bits of a robust mutex's word that are its owner's thread."""
LOCK_SIZE = _WRITE_MUTEX + _MUTEX_WORD.size
"""How many bytes of the lock file ``write_lock_thread`` needs."""


@cache
def has_known_pages() -> bool:
    """Whether this LMDB writes data files of the layout described here."""
    return lmdb.version()[:2] == VERSION and struct.calcsize("P") == 8


@cache
def has_known_lock() -> bool:
    """Whether this LMDB and this C library have a lock file of the layout described here."""
    return has_known_pages() and os.uname().machine == "x86_64" and _has_glibc()


def _has_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (OSError, ValueError):  # another C library does not know this name
        return False


def write_lock_thread(data: bytes) -> int:
    """Return the thread that holds the writers' mutex of a lock file; 0 if it is free.

    ``data`` is the beginning of the file. In a file of another format, the owner is unknown.
    """
    if len(data) < LOCK_SIZE or _LOCK_HEAD.unpack_from(data) != (_MAGIC, _LOCK_FORMAT):
        return 0
    word: int = _MUTEX_WORD.unpack_from(data, _WRITE_MUTEX)[0]
    return word & _OWNER_BITS


class Unreadable(Exception):
    """A page is not what it must be."""


class Tree(msgspec.Struct, frozen=True):
    """LMDB's record of a tree: its root, and its counts of pages and entries."""

    pad: int
    flags: int
    depth: int
    branches: int
    leaves: int
    overflows: int
    entries: int
    root: int


class Commit(msgspec.Struct, frozen=True):
    """One of the two newest commits, as its meta page describes it."""

    number: int
    last_page: int
    page_size: int
    free: Tree
    main: Tree


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


def single_commits(fd: int, page_sizes: Sequence[int]) -> list[Commit]:
    """Return what can be read of the two newest commits if one of their pages is damaged."""
    found: dict[int, Commit] = {}
    for number, at in [(0, 0), *((1, size) for size in page_sizes)]:
        with suppress(Unreadable):
            commit = _commit(os.pread(fd, _META_SIZE, at), number)
            if commit.page_size in page_sizes and (number == 0 or commit.page_size == at):
                found[number] = commit
    return sorted(found.values(), reverse=True, key=lambda commit: commit.number)


def renumber(fd: int, number: int) -> int:
    """Give the commit of a compacting copy a number above this one; return the new number.

    LMDB numbers the commits of a copy 0 and 1. Each number belongs on one of the first two pages.
    """
    newest = number + 2 - (number + 1) % 2
    at = PAGE.size + _META_HEAD.size + 2 * TREE.size + NUMBER.size
    size = commits(fd)[0].page_size
    for page, commit in enumerate((newest - 1, newest)):
        os.pwrite(fd, NUMBER.pack(commit), page * size + at)
    return newest


def _commit(data: bytes, number: int) -> Commit:
    if len(data) < _META_SIZE:
        raise Unreadable(f"page {number} is cut short")
    page, _, flags, _, _ = PAGE.unpack_from(data)
    magic, version, _, _ = _META_HEAD.unpack_from(data, PAGE.size)
    if (page, flags, magic, version) != (number, META, _MAGIC, _DATA_VERSION):
        raise Unreadable(f"page {number} does not describe a commit")
    at = PAGE.size + _META_HEAD.size
    free, main = (Tree(*TREE.unpack_from(data, at + n * TREE.size)) for n in range(2))
    last, commit = _META_TAIL.unpack_from(data, at + 2 * TREE.size)
    if commit and commit % 2 != number:
        raise Unreadable(f"page {number} describes commit {commit}, which belongs on the other")
    return Commit(commit, last, free.pad, free, main)
