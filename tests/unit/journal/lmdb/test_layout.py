"""LMDB's own files are read by hand only where their layout is the one that is known."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from mulligan.journal.lmdb import layout
from mulligan.journal.lmdb.examine import examine
from mulligan.journal.lmdb.lockfile import LockFile
from mulligan.journal.lmdb.tables import LmdbTables
from mulligan.journal.lmdb.write_lock import find_write_lock_owner

needs_lock = pytest.mark.skipif(not layout.has_known_lock(), reason="another lock file's layout")


def forget() -> None:
    layout.has_known_pages.cache_clear()
    layout.has_known_lock.cache_clear()


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run with an LMDB whose layout nobody here has seen."""
    monkeypatch.setattr(lmdb, "version", lambda: (1, 0, 0))
    forget()
    yield
    forget()


def head(directory: Path) -> bytes:
    lock = LockFile(directory)
    try:
        return lock.read(layout.LOCK_SIZE)
    finally:
        lock.release()


@needs_lock
def test_the_lock_names_the_thread_that_writes(tmp_path: Path) -> None:
    tables = LmdbTables(tmp_path)
    try:
        assert layout.write_lock_thread(head(tmp_path)) == 0
        with tables.write():
            assert layout.write_lock_thread(head(tmp_path)) == threading.get_native_id()
            owner = find_write_lock_owner(tmp_path)
            assert owner is not None
            assert owner.pid == os.getpid()
    finally:
        tables.close()


@needs_lock
@pytest.mark.parametrize("format_", [0, 2 | 1 << 16, 1])
def test_a_lock_file_of_another_format_has_no_owner(tmp_path: Path, format_: int) -> None:
    tables = LmdbTables(tmp_path)
    try:
        with tables.write():
            data = bytearray(head(tmp_path))
            struct.pack_into("=I", data, 4, format_)
            assert layout.write_lock_thread(bytes(data)) == 0
            assert layout.write_lock_thread(bytes(data)[:-1]) == 0
    finally:
        tables.close()


def test_with_another_lmdb_no_owner_is_named(tmp_path: Path, newer: None) -> None:
    tables = LmdbTables(tmp_path)
    try:
        with tables.write():
            assert find_write_lock_owner(tmp_path) is None
    finally:
        tables.close()


def test_with_another_lmdb_pages_are_not_judged(tmp_path: Path, newer: None) -> None:
    """Its pages would look damaged, and a sound journal would be refused."""
    (tmp_path / "data.mdb").write_bytes(b"a layout of its own" * 1_000)
    verdict = examine(tmp_path, is_shared=lambda: False, may_be_new=True)
    assert verdict.damage == {}


def test_with_the_known_lmdb_they_are(tmp_path: Path) -> None:
    assert layout.has_known_pages()
    (tmp_path / "data.mdb").write_bytes(b"a layout of its own" * 1_000)
    assert examine(tmp_path, is_shared=lambda: False, may_be_new=True).damage
