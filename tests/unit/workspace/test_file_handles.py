"""A program that has a database in its workspace open keeps its locks through checkpoints."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import mulligan
from mulligan.workspace import file_handles
from tests.children import Tell, run_child

HANGS = 60
"""Seconds after which a child that waits for nobody is ended."""

WRITE = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
database.execute("begin immediate")
"""


def second_writer_gets_in(database: Path) -> bool:
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(database)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 or "database is locked" in done.stderr, done.stderr
    return done.returncode == 0


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.parametrize("config", ["", "[workspace.snapshot]\nsqlite = ['*.db']\n"])
def test_a_transaction_keeps_its_lock_through_a_checkpoint(
    tmp_path: Path, work: Path, mode: str, config: str
) -> None:
    with mulligan.open(tmp_path / "store") as store:
        (Path(str(store.path)) / "config.toml").write_text(config)
    with (
        mulligan.open(tmp_path / "store") as store,
        closing(sqlite3.connect(work / "a.db", isolation_level=None)) as database,
    ):
        session = store.session("run", workspace=work)
        database.execute(f"pragma journal_mode = {mode}")
        database.execute("create table t (n)")
        for number in range(3):
            database.execute("begin immediate")
            database.execute("insert into t values (?)", [number])
            session.checkpoint()
            assert not second_writer_gets_in(work / "a.db")
            database.execute("commit")
            session.checkpoint()
            assert second_writer_gets_in(work / "a.db")


def test_a_transaction_keeps_its_lock_through_a_restore(tmp_path: Path, work: Path) -> None:
    """The restore leaves the database as it is, and syncs it: it was written just now."""
    (work / "a.txt").write_text("before")
    with (
        mulligan.open(tmp_path / "store") as store,
        closing(sqlite3.connect(work / "a.db", isolation_level=None)) as database,
    ):
        session = store.session("run", workspace=work)
        database.execute("create table t (n)")
        taken = session.checkpoint()
        (work / "a.txt").write_text("after")
        database.execute("begin immediate")
        session.restore(taken)
        assert (work / "a.txt").read_text() == "before"
        assert not second_writer_gets_in(work / "a.db")
        database.execute("commit")
        assert second_writer_gets_in(work / "a.db")


def test_descriptors_are_kept_no_longer_than_the_program_has_the_file_open(
    tmp_path: Path, work: Path
) -> None:
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        session.checkpoint()
        before = descriptors()
        with closing(sqlite3.connect(work / "a.db", isolation_level=None)) as database:
            for _ in range(10):
                database.execute("create table if not exists t (n)")
                database.execute("insert into t values (1)")
                session.checkpoint()
            assert descriptors() <= before + 2  # SQLite's own, and the one that is kept
        (work / "a.db").unlink()
        session.checkpoint()
        assert descriptors() <= before


def test_a_process_that_is_forked_off_during_a_checkpoint_takes_its_own(
    tmp_path: Path, work: Path
) -> None:
    """Threads that are not in it may have held any lock at that moment."""
    file = work / "a.db"
    file.write_bytes(bytes(4096))
    with mulligan.open(tmp_path / "store") as store, file.open("rb"):
        session = store.session("run", workspace=work)
        session.checkpoint()
        assert file_handles._kept

        def go_on(tell: Tell) -> None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(HANGS)
            assert not file_handles._kept  # it would share its position with the parent
            file.write_bytes(b"1" * 4096)
            session.checkpoint(label="child")
            tell("done")

        with file_handles._lock, store._engine._lock:
            child = run_child(go_on)
        assert child.finished
        assert child.told == ["done"]
        assert file_handles._kept
        assert session.checkpoints()[-1].label == "child"
