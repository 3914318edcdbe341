"""Restores that were begun and not finished: what is kept, what is possible, how they end."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan import Session
from mulligan.cli.main import run
from mulligan.errors import DiskFull, MissingObject, NothingToUndo, RestorePending
from mulligan.failpoints import Failpoint
from mulligan.store import Store
from mulligan.testing.failpoints import kill_at
from mulligan.testing.stores import open_store
from tests.children import Tell, run_child
from tests.pictures import Picture, picture

# --- finished late ---------------------------------------------------------------------------


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    (made / "file").write_text("then")
    return made


THEN = {"which": "then", "plan": {"a": 1, "b": 1}, "log": ["then"], "gone": 1, "odd": {"x": 1}}
NOW = {"which": "now", "plan": {"a": 2, "b": 2}, "log": ["now"], "new": 1, "odd": [0, 1]}


def interrupted(tmp_path: Path, work: Path, only: list[str] | None = None) -> None:
    """Kill a restore of ``then`` in the middle of its files."""
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        session.state.set("", THEN)
        session.checkpoint(label="then")
        (work / "file").write_text("now")
        session.state.set("", NOW)

    def body(_: Tell) -> None:
        hook = kill_at(Failpoint.RESTORE_RENAMED)
        with open_store(tmp_path / "store", failpoint=hook) as store:
            store.session("run", workspace=work).restore("then", only=only)

    assert run_child(body).by_sigkill


def written_since(session: Session) -> None:
    session.state.set("acknowledged", True)
    session.state.set("plan/b", 3)
    session.state.append("log", "since")
    session.state.delete("new")
    session.state.set("odd/1", 5)
    session.tasks.add("added later")


def test_what_was_acknowledged_since_a_restore_was_begun_is_kept(
    tmp_path: Path, work: Path
) -> None:
    interrupted(tmp_path, work)
    with mulligan.open(tmp_path / "store") as store:
        written_since(store.session("run"))
        newest = store.session("run").state.get()
        session = store.session("run", workspace=work)
        assert session.internal.recovered is not None
        assert (work / "file").read_text() == "then"
        found = session.state.get()
        assert found.pop("tasks") == newest["tasks"]
        assert found == {
            "which": "then",
            "plan": {"a": 1, "b": 3},
            "log": ["now", "since"],
            "gone": 1,
            "odd": [0, 5],
            "acknowledged": True,
        }
        session.undo()
        assert session.state.get() == newest
        assert (work / "file").read_text() == "now"
        assert store.verify().problems == ()


def test_without_writes_since_the_whole_state_comes_back(tmp_path: Path, work: Path) -> None:
    interrupted(tmp_path, work)
    with mulligan.open(tmp_path / "store") as store:
        store.session("run").checkpoint()  # changes nothing
        assert store.session("run", workspace=work).state.get() == THEN


def test_a_state_restored_since_stays_as_it_was_restored(tmp_path: Path, work: Path) -> None:
    interrupted(tmp_path, work)
    with mulligan.open(tmp_path / "store") as store:
        bare = store.session("run")
        bare.state.set("", {"other": 1})
        other = bare.checkpoint()
        bare.state.set("", {"other": 2})
        bare.restore(other)
        session = store.session("run", workspace=work)
        assert session.internal.recovered is not None
        assert session.state.get() == {"other": 1}


def test_parts_that_were_changed_since_are_kept_in_a_restore_of_parts(
    tmp_path: Path, work: Path
) -> None:
    interrupted(tmp_path, work, only=["plan", "which", "file"])
    with mulligan.open(tmp_path / "store") as store:
        store.session("run").state.set("plan/b", 3)
        session = store.session("run", workspace=work)
        assert session.internal.recovered is not None
        assert session.state.get() == {**NOW, "which": "then", "plan": {"a": 1, "b": 3}}


def test_a_part_that_was_deleted_since_does_not_keep_a_restore_from_its_end(
    tmp_path: Path, work: Path
) -> None:
    interrupted(tmp_path, work, only=["new", "file"])
    with mulligan.open(tmp_path / "store") as store:
        store.session("run").state.delete("new")
        session = store.session("run", workspace=work)
        assert session.internal.recovered is not None
        assert session.files.pending is None
        assert session.state.get("new") is None


def test_what_others_write_while_files_are_restored_is_kept(tmp_path: Path, work: Path) -> None:
    armed = False

    def failpoint(point: Failpoint) -> None:
        nonlocal armed
        if armed and point is Failpoint.RESTORE_WRITTEN:
            armed = False
            write_in_another_process(tmp_path)

    with open_store(tmp_path / "store", failpoint=failpoint) as store:
        session = store.session("run", workspace=work)
        session.state.set("", THEN)
        made = session.checkpoint()
        (work / "file").write_text("now")
        session.state.set("", NOW)
        armed = True
        assert session.restore(made).problems == ()
        assert session.state.get() == {**THEN, "acknowledged": True}


def write_in_another_process(tmp_path: Path) -> None:
    def body(_: Tell) -> None:
        with mulligan.open(tmp_path / "store") as store:
            store.session("run").state.set("acknowledged", True)

    assert run_child(body).finished


# --- not to be finished ----------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for three megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    _mount("-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")


class Full:
    """A session whose restore found the disk full."""

    def __init__(self, store: Path, work: Path) -> None:
        self.store, self.work = store, work
        work.mkdir()
        (work / "kept").write_text("small")
        (work / "one").write_bytes(random.Random(1).randbytes(400_000))
        with mulligan.open(store) as opened:
            session = opened.session("run", workspace=work)
            session.state.set("a", 1)
            self.then, self.made = picture(work), session.checkpoint(label="then")
            (work / "one").unlink()
            (work / "kept").write_text("changed")
            session.state.set("a", 2)
            self.small, _ = picture(work), session.checkpoint(label="small")
            (work / "filler").write_bytes(random.Random(2).randbytes(2_900_000))
            session.state.set("a", 3)
            self.now = picture(work)
            with pytest.raises(DiskFull):
                session.restore("then")

    def is_now(self) -> bool:
        return picture(self.work) == self.now


@pytest.fixture
def full(tmp_path: Path, small_disk: Path) -> Full:
    return Full(tmp_path / "store", small_disk / "work")


@pytest.fixture
def store(full: Full) -> Iterator[Store]:
    with mulligan.open(full.store) as opened:
        yield opened


def test_a_session_opens_though_its_restore_cannot_be_finished(full: Full, store: Store) -> None:
    for _ in range(3):
        session = store.agent("coder", session="run", workspace=full.work)
        assert session.internal.recovered is None
        assert isinstance(session.files.recovery_error, DiskFull)
        assert session.files.pending is not None
        assert session.files.pending.point.seq == full.made.seq
        assert session.files.pending.directory == str(full.work)
        assert session.state.get("a") == 3
        session.state.set("b", 1)
        half, taken = picture(full.work), session.checkpoint()
        assert picture(full.work) == half
        assert taken.workspace is None, "it holds a tree that is half restored"
        assert "without files: a restore to #" in str(taken.note)
        session.close()
    assert not store.session("run").internal.is_held("coder")


def test_something_else_can_be_restored_instead(full: Full, store: Store) -> None:
    session = store.session("run", workspace=full.work)
    assert session.restore("small").problems == ()
    assert (picture(full.work), session.state.get("a")) == (full.small, 2)
    assert session.files.pending is None
    session.undo()  # back to what the full disk had left
    session.undo()  # and to what was there before
    assert full.is_now()
    assert session.state.get("a") == 3
    assert store.verify().problems == ()


def test_undo_takes_back_what_cannot_be_finished(full: Full, store: Store) -> None:
    session = store.session("run", workspace=full.work)
    foreseen, here = session.internal.preview("undo"), session.head
    half = picture(full.work)
    differs = {path for path in full.now | half if full.now.get(path) != half.get(path)}
    assert {os.fsencode(change.path) for change in foreseen.files.files} | {b""} == differs
    assert not foreseen.state
    with pytest.raises(RestorePending):
        session.internal.preview("redo")
    assert session.head == here
    session.undo()
    assert full.is_now()
    assert session.state.get("a") == 3
    assert session.files.pending is None
    with pytest.raises(NothingToUndo):
        session.undo()


def test_the_same_restore_once_more_says_what_is_in_the_way(full: Full, store: Store) -> None:
    session = store.session("run", workspace=full.work)
    with pytest.raises(DiskFull):
        session.restore("then")
    assert session.files.pending is not None
    _mount("-o", "remount,size=40m", str(full.work.parent))
    assert session.files.recover() is not None
    assert (session.files.recovery_error, session.files.pending) == (None, None)
    assert (picture(full.work), session.state.get("a")) == (full.then, 1)


@pytest.mark.parametrize("bare", [False, True], ids=["with its directory", "without"])
def test_it_can_be_abandoned_and_undone(full: Full, store: Store, bare: bool) -> None:
    session = store.session("run", **({} if bare else _with(full)))
    here = picture(full.work)
    assert session.files.abandon() is not None
    assert picture(full.work) == here
    assert session.state.get("a") == 3
    again = store.session("run", workspace=full.work)
    assert (again.internal.recovered, again.files.pending, again.files.recovery_error) == (
        None,
        None,
        None,
    )
    again.undo()
    assert full.is_now()
    assert again.state.get("a") == 3
    assert store.verify().problems == ()


def _with(full: Full) -> dict[str, Any]:
    return {"workspace": full.work}


def test_an_undo_that_cannot_be_finished_is_taken_back_by_redo(
    tmp_path: Path, small_disk: Path
) -> None:
    work = small_disk / "work"
    work.mkdir()
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        made = session.checkpoint()
        (work / "one").write_bytes(random.Random(1).randbytes(400_000))
        session.restore(made)
        (work / "filler").write_bytes(random.Random(2).randbytes(2_900_000))
        now = picture(work)
        for _ in range(2):
            with pytest.raises(DiskFull):
                session.undo()
        session.redo()
        assert picture(work) == now
        assert session.files.pending is None


def test_a_restore_whose_tree_is_lost_can_be_abandoned(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(tmp_path, work)
    with mulligan.open(tmp_path / "store") as store:
        tree = store.session("run").checkpoints.at("then").workspace
        objects = store._engine.objects
        real = objects.get

        def get(kind: int, digest: Any) -> bytes:
            if digest == tree:
                raise MissingObject("It is gone.")
            return real(kind, digest)

        monkeypatch.setattr(objects, "get", get)
        session = store.session("run", workspace=work)
        assert isinstance(session.files.recovery_error, MissingObject)
        session.files.abandon()
        assert session.files.pending is None
        assert_restorable(session, work)


def assert_restorable(session: Session, work: Path) -> None:
    made = session.checkpoint()
    before: Picture = picture(work)
    (work / "more").write_text("more")
    assert session.restore(made).problems == ()
    assert picture(work) == before


def test_the_command_line_says_that_a_restore_cannot_be_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(random.Random(7).randbytes(100_000))
    with mulligan.open(tmp_path) as store:
        session = store.session("main", workspace=tmp_path)
        session.checkpoint(label="then")
        (tmp_path / "file").write_text("now")
        (tmp_path / "file.2").write_text("now")

    def body(_: Tell) -> None:
        with open_store(tmp_path, failpoint=kill_at(Failpoint.RESTORE_TEMPORARY_WRITTEN)) as store:
            store.session("main", workspace=tmp_path).restore("then")

    assert run_child(body).by_sigkill
    for pack in (tmp_path / ".mulligan/packs").glob("*.pack"):
        pack.rename(tmp_path / ".mulligan/tmp" / pack.name)
    run(["--store", str(tmp_path), "checkpoint", "--label", "halfway"])
    said = capsys.readouterr().err
    assert "a restore to main #2 of the files was interrupted halfway" in said
    assert "It cannot be finished:" in said


def test_a_task_or_mailbox_that_was_used_since_is_kept_whole(tmp_path: Path, work: Path) -> None:
    """Half of a record, the newer half, would be no record."""
    interrupted(tmp_path, work)
    with mulligan.open(tmp_path / "store") as store:
        boss, coder = (store.session("run", actor=name) for name in ("boss", "coder"))
        boss.tasks.add("later")
        boss.mailbox.send("coder", "later", requires_ack=True)
        assert coder.tasks.claim() is not None
        message = coder.mailbox.receive()
        assert message is not None
        session = store.session("run", workspace=work)
        assert session.internal.recovered is not None
        assert session.tasks.get("later").owner == "coder"
        coder.tasks.complete("later")
        coder.mailbox.ack(message)
        assert [m.subject for m in coder.mailbox.waiting()] == []
