"""An environment that was worn out by an error of the disk is opened anew, under all threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mulligan.errors import DamagedJournal
from mulligan.journal.lmdb import LmdbTables
from mulligan.journal.lmdb_env import Environment, acquire, identity, release


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[LmdbTables]:
    made = LmdbTables(tmp_path)
    with made.write() as writer:
        writer.put("meta", b"key", b"value")
    yield made
    made.close()


@pytest.fixture
def shared(tables: LmdbTables, tmp_path: Path) -> Iterator[Environment]:
    key = identity(tmp_path)
    found = acquire(key, tmp_path, read_only=False)
    yield found
    release(key, found)


def value(tables: LmdbTables) -> bytes | None:
    with tables.read() as reader:
        return reader.get("meta", b"key")


def test_an_attempt_that_failed_is_made_again_at_the_next_read(
    tables: LmdbTables, shared: Environment, tmp_path: Path
) -> None:
    """Nothing is made in the place of a file that has gone, and what was there is not refused."""
    file, away = tmp_path / "data.mdb", tmp_path / "away"
    shared.wear()
    file.rename(away)
    for _ in range(2):
        with pytest.raises(DamagedJournal, match=r"no data\.mdb"):
            value(tables)
    assert not file.exists()
    away.rename(file)
    assert value(tables) == b"value"


def test_threads_that_wait_for_the_same_do_not_wait_for_each_other(
    tables: LmdbTables, shared: Environment
) -> None:
    inside = threading.Barrier(2, timeout=60)
    met: list[bytes | None] = []

    def read() -> None:
        with suppress(threading.BrokenBarrierError), tables.read() as reader:
            inside.wait()
            met.append(reader.get("meta", b"key"))

    threads = [threading.Thread(target=read) for _ in range(2)]
    with tables.read():
        shared.wear()
        for thread in threads:
            thread.start()
        while shared._waiting < 2 and all(thread.is_alive() for thread in threads):
            pass
    for thread in threads:
        thread.join()
    assert met == [b"value"] * 2
