"""Compacting the journal: the file shrinks, nothing is lost, and nobody stays on the old file."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mulligan.failpoints import Failpoint
from mulligan.journal.lmdb import compact, layout
from mulligan.journal.lmdb.examine import commits_lost
from mulligan.journal.lmdb.tables import LmdbTables
from mulligan.journal.protocol import Compacted, Presence
from mulligan.testing.failpoints import fail_at


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "MIN_FREE_BYTES", 1 << 18)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal with two megabytes of free pages."""
    with_rows(tmp_path, range(2_000))
    tables = LmdbTables(tmp_path)
    with tables.write() as writer:
        for number in range(10, 2_000):
            writer.delete("events", key(number))
    tables.close()
    return tmp_path


def key(number: int) -> bytes:
    return b"%08d" % number


def with_rows(directory: Path, rows: range) -> None:
    tables = LmdbTables(directory)
    with tables.write() as writer:
        for number in rows:
            writer.put("events", key(number), b"x" * 1_000)
    tables.close()


def rows(tables: LmdbTables) -> list[bytes]:
    with tables.read() as reader:
        return [found for found, _ in reader.scan("events", b"", None)]


def commit(journal: Path) -> int:
    fd = os.open(journal / "data.mdb", os.O_RDONLY)
    try:
        return layout.commits(fd)[0].number
    finally:
        os.close(fd)


@pytest.fixture
def opened(journal: Path) -> Iterator[LmdbTables]:
    tables = LmdbTables(journal)
    yield tables
    tables.close()


def test_the_file_shrinks_and_keeps_everything(journal: Path, opened: LmdbTables) -> None:
    before = (journal / "data.mdb").stat().st_size
    assert opened.compact().freed > before // 2
    assert (journal / "data.mdb").stat().st_size < before // 2
    assert rows(opened) == [key(number) for number in range(10)]
    assert opened.presence() is Presence.PRESENT
    with opened.write() as writer:
        writer.put("events", key(10), b"new")
    assert len(rows(opened)) == 11
    assert opened.examine().damage == {}


def test_commit_numbers_go_on_so_that_an_older_copy_is_noticed(
    journal: Path, opened: LmdbTables
) -> None:
    before = commit(journal)
    opened.compact()
    assert commit(journal) > before
    assert commits_lost(journal, commit(journal)) == 0
    assert commits_lost(journal, before) > 0


def test_a_journal_without_much_free_space_stays(tmp_path: Path) -> None:
    with_rows(tmp_path, range(2_000))
    tables = LmdbTables(tmp_path)
    before = (tmp_path / "data.mdb").stat()
    assert tables.compact() == Compacted()
    assert (tmp_path / "data.mdb").stat().st_ino == before.st_ino
    tables.close()


def test_every_handle_of_the_process_follows(journal: Path, opened: LmdbTables) -> None:
    other = LmdbTables(journal)
    opened.compact()
    assert other.presence() is Presence.PRESENT
    with other.write() as writer:
        writer.put("events", key(11), b"new")
    assert key(11) in rows(opened)
    other.close()


def in_child(act: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return pid


def test_it_is_skipped_while_another_process_has_it_open(journal: Path, opened: LmdbTables) -> None:
    ready, go = os.pipe(), os.pipe()
    inode = (journal / "data.mdb").stat().st_ino

    def hold() -> None:
        tables = LmdbTables(journal, read_only=True)
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        assert len(rows(tables)) == 10

    pid = in_child(hold)
    os.read(ready[0], 1)
    done = opened.compact()
    os.write(go[1], b"x")
    assert os.waitpid(pid, 0)[1] == 0
    assert done == Compacted(skipped=compact.IN_USE)
    assert (journal / "data.mdb").stat().st_ino == inode
    assert len(rows(opened)) == 10


@pytest.mark.parametrize("read_only", [False, True])
def test_a_process_that_opens_it_meanwhile_waits_and_gets_the_new_file(
    journal: Path, read_only: bool
) -> None:
    ready = os.pipe()
    children: list[int] = []

    def opening() -> None:
        os.write(ready[1], b"x")
        tables = LmdbTables(journal, read_only=read_only)
        assert tables.presence() is Presence.PRESENT
        assert len(rows(tables)) == 10
        if not read_only:
            with tables.write() as writer:
                writer.put("events", key(12), b"child")
        tables.close()

    def meanwhile(point: Failpoint) -> None:
        if point is Failpoint.COMPACT_LOCKED and not children:
            children.append(in_child(opening))
            os.read(ready[0], 1)
            waiting(children[0])

    tables = LmdbTables(journal, failpoint=meanwhile)
    assert tables.compact().freed > 0
    assert os.waitpid(children[0], 0)[1] == 0
    assert (key(12) in rows(tables)) is not read_only
    assert tables.examine().damage == {}
    tables.close()


def waiting(pid: int) -> None:
    """Return once a process waits for a lock."""
    while f"{pid} " not in locks_waited_for():
        pass


def locks_waited_for() -> str:
    lines = Path("/proc/locks").read_text().splitlines()
    return " ".join(f"{line.split()[5]} " for line in lines if "->" in line)


POINTS = [point for point in Failpoint if point.name.startswith("COMPACT_")]


@pytest.mark.parametrize("point", POINTS)
def test_an_error_at_any_point_leaves_a_journal_that_works(journal: Path, point: Failpoint) -> None:
    tables = LmdbTables(journal, failpoint=fail_at(point, Killed()))
    with pytest.raises(Killed):
        tables.compact()
    assert len(rows(tables)) == 10
    with tables.write() as writer:
        writer.put("events", key(10), b"new")
    assert tables.examine().damage == {}
    assert tables.presence() is Presence.PRESENT
    tables.compact()
    assert len(rows(tables)) == 11
    tables.close()
    assert [name for name in os.listdir(journal) if name.startswith(compact.PREFIX)] == []


def test_a_full_disk_skips_it(journal: Path) -> None:
    full = OSError(28, os.strerror(28))
    tables = LmdbTables(journal, failpoint=fail_at(Failpoint.COMPACT_COPIED, full))
    assert tables.compact() == Compacted(skipped=compact.NO_ROOM)
    assert len(rows(tables)) == 10
    tables.close()


def test_a_commit_of_another_thread_meanwhile_skips_it(journal: Path) -> None:
    def write() -> None:
        with tables.write() as writer:
            writer.put("events", key(10), b"new")

    def meanwhile(point: Failpoint) -> None:
        if point is Failpoint.COMPACT_COPIED:
            thread = threading.Thread(target=write)
            thread.start()
            thread.join()

    tables = LmdbTables(journal, failpoint=meanwhile)
    assert tables.compact().skipped == compact.BUSY
    assert len(rows(tables)) == 11
    tables.close()
