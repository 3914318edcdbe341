"""A process that has the journal open leaves it for a moment when it is asked to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mulligan.journal.lmdb import leave
from mulligan.journal.lmdb.tables import LmdbTables
from mulligan.journal.protocol import Presence
from tests.children import run_child


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at every transaction."""
    monkeypatch.setattr(leave, "LOOK_SECONDS", 0)


def put(tables: LmdbTables, value: bytes) -> None:
    with tables.write() as writer:
        writer.put("meta", b"key", value)


def get(tables: LmdbTables) -> bytes | None:
    with tables.read() as reader:
        return reader.get("meta", b"key")


def test_the_file_is_replaced_beside_a_process_that_uses_it(tmp_path: Path) -> None:
    ready, told = os.pipe(), os.pipe()

    def other(_: object) -> None:
        tables = LmdbTables(tmp_path)
        os.write(ready[1], b"1")
        os.set_blocking(told[0], False)
        number = 0
        while True:
            put(tables, b"%d" % number)
            assert tables.presence() is Presence.PRESENT
            number += 1
            try:
                os.read(told[0], 1)
                break
            except BlockingIOError:
                continue
        put(tables, b"end")
        tables.close()

    mine = LmdbTables(tmp_path)
    put(mine, b"start")
    mine.close()
    pid = os.fork()
    if not pid:
        other(None)
        os._exit(0)
    os.read(ready[0], 1)
    tables = LmdbTables(tmp_path)
    before = os.stat(tmp_path / "data.mdb").st_ino
    assert tables.compact(patience=60).skipped is None
    assert os.stat(tmp_path / "data.mdb").st_ino != before
    os.write(told[1], b"1")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert get(tables) == b"end"
    assert tables.presence() is Presence.PRESENT
    assert not (tmp_path / leave.NAME).exists()
    tables.close()


def test_a_file_that_no_process_locks_asks_for_nothing(tmp_path: Path) -> None:
    (tmp_path / leave.NAME).touch()
    tables = LmdbTables(tmp_path)
    put(tables, b"value")
    assert get(tables) == b"value"
    assert leave.asked(tmp_path) is None
    tables.close()


def test_an_idle_process_is_not_waited_for_without_end(tmp_path: Path) -> None:
    tables = LmdbTables(tmp_path)
    put(tables, b"value")

    def second(_: object) -> None:
        other = LmdbTables(tmp_path)
        assert "other processes" in str(other.compact(patience=0.05).skipped)
        other.close()

    tables_open = run_child(second)
    assert tables_open.finished
    assert get(tables) == b"value"
    tables.close()
