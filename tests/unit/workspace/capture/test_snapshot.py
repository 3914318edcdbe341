"""Files that are taken by their own means: databases by SQLite, others by a command."""

from __future__ import annotations

import os
import random
import shlex
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import mulligan
from mulligan import Session
from mulligan.errors import InvalidConfig
from mulligan.layout import locate
from mulligan.model import Checkpoint
from mulligan.workspace.capture import snapshot
from mulligan.workspace.capture.capture import Capture
from mulligan.workspace.capture.scan import Changes
from mulligan.workspace.capture.snapshot import SnapshotFailed, _back_up
from tests.neighbours import neighbour


@contextmanager
def configured(tmp_path: Path, work: Path, text: str) -> Iterator[Session]:
    with mulligan.open(tmp_path / "store"):
        pass
    (locate(tmp_path / "store") / "config.toml").write_text(text)
    with mulligan.open(tmp_path / "store") as store:
        yield store.session("run", workspace=work)


SQLITE = '[workspace.snapshot]\nsqlite = ["*.db"]\n'


def left_out(made: Checkpoint) -> dict[str, str]:
    assert made.coverage is not None
    return {left.path: left.rule for left in made.coverage.left_out}


def changing(made: Checkpoint) -> list[tuple[str, str, bool]]:
    assert made.coverage is not None
    return [(found.path, found.reason, found.torn) for found in made.coverage.changing]


def make_database(file: Path, mode: str) -> sqlite3.Connection:
    database = sqlite3.connect(file)
    database.execute(f"pragma journal_mode = {mode}")
    database.execute("create table t (id integer primary key, n integer, filler blob)")
    rows = [(number, 0, os.urandom(3000)) for number in range(200)]
    database.executemany("insert into t values (?, ?, ?)", rows)
    database.commit()
    return database


def numbers(content: bytes, place: Path) -> set[int]:
    """Return what is in the column n of a database, which must be sound."""
    place.write_bytes(content)
    with closing(sqlite3.connect(place)) as database:
        assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
        return {n for (n,) in database.execute("select n from t")}


WRITER = """
    import itertools, sqlite3, sys
    database = sqlite3.connect(sys.argv[1], timeout=60)
    database.execute("pragma synchronous = off")
    print("ready", flush=True)
    for number in itertools.count():
        with database:
            database.execute("update t set n = ?, filler = randomblob(3000)", (number,))
"""


@pytest.mark.parametrize("watch", [False, True], ids=["scan", "watch"])
@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_database_under_write_is_sound_in_every_checkpoint(
    tmp_path: Path, work: Path, mode: str, watch: bool
) -> None:
    make_database(work / "app.db", mode).close()
    with configured(tmp_path, work, SQLITE) as session, neighbour(WRITER, work / "app.db"):
        if watch:
            session.internal.watch()
        seen = set()
        for _ in range(8):
            made = session.checkpoint()
            found = numbers(session.files.read(made, "app.db"), tmp_path / "copy.db")
            assert len(found) == 1, "each transaction is there as a whole"
            assert not [path for path, *_ in changing(made) if path == "app.db"]
            assert set(left_out(made)) <= {f"app.db-{side}" for side in ("wal", "shm", "journal")}
            seen |= found
        assert len(seen) > 1, "no checkpoint is of an earlier moment than it must be"


def test_what_sqlite_keeps_beside_a_database_is_in_its_snapshot(tmp_path: Path, work: Path) -> None:
    database = make_database(work / "app.db", "wal")
    with configured(tmp_path, work, SQLITE) as session:
        first = session.checkpoint()
        side = "its content is in the snapshot of app.db"
        assert left_out(first) == {"app.db-shm": side, "app.db-wal": side}
        assert numbers(session.files.read(first, "app.db"), tmp_path / "copy.db") == {0}
        database.execute("update t set n = 7")
        database.commit()
        second = session.checkpoint()
        assert numbers(session.files.read(second, "app.db"), tmp_path / "copy.db") == {7}
        # While it is open, nothing takes its place: the log would be applied to another database.
        alone = {left.path for left in session.files.plan(first).left_alone}
        assert "app.db" in alone
        done = session.restore(first)
        assert [problem.where for problem in done.problems] == ["app.db"]
        assert "a program has it open" in done.problems[0].detail
        database.close()
        assert session.restore(first).problems == ()
        assert numbers((work / "app.db").read_bytes(), tmp_path / "copy.db") == {0}
        closed = session.checkpoint()
        assert (left_out(closed), changing(closed)) == ({}, [])


@pytest.mark.parametrize("locked", [False, True], ids=["taken", "failed"])
def test_a_capture_takes_one_snapshot_however_often_side_files_come_and_go(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch, locked: bool
) -> None:
    make_database(work / "app.db", "delete").close()
    real, backed_up = Capture.take, []

    def busy(self: Capture, changes: Changes) -> None:
        real(self, changes)
        changes.moved = True  # so that the capture looks again
        journal = work / "app.db-journal"
        journal.unlink(missing_ok=True)
        journal.touch()

    def back_up(*arguments: object) -> bool:
        backed_up.append(arguments)
        if locked:
            raise SnapshotFailed("it is locked")
        return _back_up(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Capture, "take", busy)
    monkeypatch.setattr(snapshot, "_back_up", back_up)
    with configured(tmp_path, work, SQLITE) as session:
        made = session.checkpoint()
        assert len(backed_up) == 1
        assert numbers(session.files.read(made, "app.db"), tmp_path / "copy.db") == {0}
        assert [path for path, *_ in changing(made) if path == "app.db"] == ["app.db"] * locked
        session.checkpoint()
        assert len(backed_up) == 2, "the next capture takes one of its own"


def test_a_snapshot_with_the_bytes_of_the_file_is_no_change(tmp_path: Path, work: Path) -> None:
    run = "run = ['cp', '{path}', '{output}']"
    config = f"[[workspace.snapshot.command]]\nfiles = ['*.rdb']\n{run}\n"
    for seed in range(8):  # of these some would be cut into pieces if they were larger
        (work / f"{seed}.rdb").write_bytes(random.Random(seed).randbytes(1 << 20))
    with configured(tmp_path, work, "") as session:
        session.checkpoint(label="plain")
    with configured(tmp_path, work, config) as session:
        for file in work.iterdir():
            os.utime(file, ns=(0, file.stat().st_mtime_ns))  # so that it is looked at again
        session.checkpoint(label="snapshot")
        assert session.diff("plain", "snapshot").files == ()


def test_a_file_that_is_no_database_is_read_as_it_is_and_named(tmp_path: Path, work: Path) -> None:
    (work / "odd.db").write_bytes(b"text")
    (work / "link.db").symlink_to("odd.db")
    with configured(tmp_path, work, SQLITE) as session:
        made = session.checkpoint()
        assert session.files.read(made, "odd.db") == b"text"
        assert session.files.read(made, "link.db") == b"odd.db"
        assert changing(made) == [
            (
                "odd.db",
                "it was read directly, because no snapshot could be taken: "
                "it is not a SQLite database",
                False,
            )
        ]


def test_a_database_that_is_locked_is_read_as_it_is_and_named(tmp_path: Path, work: Path) -> None:
    database = make_database(work / "app.db", "delete")
    database.execute("begin exclusive")
    with configured(tmp_path, work, SQLITE + "timeout = 0.1\n") as session:
        made = session.checkpoint()
        [(path, reason, torn)] = changing(made)
        assert (path, torn) == ("app.db", False)
        assert "locked" in reason
        assert session.files.read(made, "app.db") == (work / "app.db").read_bytes()
    database.close()


def command(code: str, *more: str) -> str:
    """Return configuration that takes ``*.state`` with Python code."""
    run = [sys.executable, "-c", code, "{path}", *more]
    return (
        f"[workspace.snapshot]\ntimeout = 20\n"
        f'[[workspace.snapshot.command]]\nfiles = ["*.state"]\nrun = {run}\n'
    )


TO_OUTPUT = "import sys; open(sys.argv[2], 'w').write(open(sys.argv[1]).read().upper())"
TO_STDOUT = "import sys; sys.stdout.write(open(sys.argv[1]).read().upper())"


@pytest.mark.parametrize(
    "text", [command(TO_OUTPUT, "{output}"), command(TO_STDOUT)], ids=["output", "stdout"]
)
def test_a_command_takes_a_snapshot(tmp_path: Path, work: Path, text: str) -> None:
    (work / "deep").mkdir()
    (work / "deep" / "a.state").write_text("content")
    (work / "other").write_text("content")
    with configured(tmp_path, work, text) as session:
        made = session.checkpoint()
        assert session.files.read(made, "deep/a.state") == b"CONTENT"
        assert session.files.read(made, "other") == b"content"
        assert changing(made) == []
        (work / "deep" / "a.state").write_text("lost")
        assert session.restore(made).problems == ()
        assert (work / "deep" / "a.state").read_text() == "CONTENT"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit('not today')", "ended with 1: not today"),
        ("import time; time.sleep(1000)", "took longer than 0.2 s"),
    ],
    ids=["fails", "hangs"],
)
def test_a_command_that_fails_is_named_and_the_file_is_captured(
    tmp_path: Path, work: Path, code: str, said: str
) -> None:
    (work / "a.state").write_text("content")
    text = command(code).replace(
        "timeout = 20", "timeout = 0.2" if "0.2" in said else "timeout = 60"
    )
    with configured(tmp_path, work, text) as session:
        made = session.checkpoint()
        assert session.files.read(made, "a.state") == b"content"
        [(path, reason, torn)] = changing(made)
        assert (path, torn) == ("a.state", False)
        assert said in reason


def hooks(before: str, after: str) -> str:
    run = [[sys.executable, "-c", code] for code in (before, after)]
    return f"[workspace.snapshot]\nbefore = {run[0]}\nafter = {run[1]}\n"


def test_commands_run_around_each_capture(tmp_path: Path, work: Path) -> None:
    text = hooks("open('paused', 'w').write('yes')", "import os; os.unlink('paused')")
    with configured(tmp_path, work, text) as session:
        made = session.checkpoint()
        assert session.files.read(made, "paused") == b"yes"
        assert not (work / "paused").exists()
        assert changing(made) == []


def test_the_command_after_a_capture_runs_whatever_happened(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "file").touch()

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    text = hooks("raise SystemExit('no pause')", "open('done', 'a').write('x')")
    with configured(tmp_path, work, text) as session:
        made = session.checkpoint()
        assert (work / "done").read_text() == "x"
        [(path, reason, torn)] = changing(made)
        assert (path, torn) == (".", False)
        assert "the command 'before' failed" in reason
        assert "no pause" in reason
        with monkeypatch.context() as patch:
            patch.setattr("mulligan.workspace.capture.capture.read_leaf", broken)
            (work / "file").write_text("new")
            with pytest.raises(RuntimeError):
                session.checkpoint()
        assert (work / "done").read_text() == "xx"


@pytest.mark.parametrize(
    "text",
    [
        "sqlite = 3",
        'sqlite = ["!"]',
        'unknown = ["x"]',
        '[[workspace.snapshot.command]]\nfiles = ["x"]\nrun = []',
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(
    tmp_path: Path, work: Path, text: str
) -> None:
    with (
        pytest.raises(InvalidConfig),
        configured(tmp_path, work, f"[workspace.snapshot]\n{text}\n"),
    ):
        pass


def test_a_config_in_the_workspace_configures_nothing(tmp_path: Path, work: Path) -> None:
    code = shlex.quote("open('run', 'w')")
    (work / "config.toml").write_text(f"[workspace.snapshot]\nbefore = ['python', '-c', {code}]\n")
    with configured(tmp_path, work, "") as session:
        session.checkpoint()
    assert not (work / "run").exists()


@pytest.mark.parametrize("below", [".", "src"])
def test_no_command_of_a_store_inside_the_project_is_run(work: Path, below: str) -> None:
    (work / below).mkdir(exist_ok=True)
    with mulligan.open(work):
        pass
    config = f"[workspace.snapshot]\nbefore = [{sys.executable!r}, '-c', \"open('run', 'w')\"]\n"
    (locate(work) / "config.toml").write_text(config)
    with mulligan.open(work) as store, pytest.raises(InvalidConfig, match="commands"):
        store.session("run", workspace=work / below).checkpoint()
    assert not list(work.rglob("run"))
