"""Files that somebody changes at the very moment of a restore, and restores that meet another."""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import mulligan
from mulligan import Session
from mulligan.errors import RestoreBusy, RestorePending
from mulligan.failpoints import Failpoint, FailpointHook
from mulligan.model import Point, Restored
from mulligan.session.write.restorer import Restorer
from mulligan.testing.failpoints import kill_at
from mulligan.testing.stores import open_store
from mulligan.workspace import syscalls
from mulligan.workspace.restore.swap import TEMPORARY_PREFIX
from tests.children import Tell, run_child
from tests.pictures import picture


def in_place(file: Path) -> None:
    with file.open("r+") as stream:
        stream.write("edited")


def by_rename(file: Path) -> None:
    beside = file.with_name("editor's own")
    beside.write_text("edited")
    beside.rename(file)


def made_a_directory(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.mkdir()
    (file / "inside").write_text("edited")


EDITS = [in_place, by_rename, made_a_directory]


def edited(file: Path) -> bool:
    found = file / "inside" if file.is_dir() else file
    return found.read_text().startswith("edited")


def drafts(work: Path) -> list[str]:
    return [
        path.name for path in work.rglob("*") if path.name.encode().startswith(TEMPORARY_PREFIX)
    ]


def details(restored: Restored) -> dict[str, str]:
    return {problem.where: problem.detail for problem in restored.problems}


def once_at(point: Failpoint, act: Callable[[], None]) -> FailpointHook:
    """Return a hook that does something the first time that a point is reached."""
    todo = [act]

    def failpoint(reached: Failpoint) -> None:
        if reached is point and todo:
            todo.pop()()

    return failpoint


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    (made / "file").write_text("before the checkpoint")
    return made


# --- an edit in the middle of a restore ------------------------------------------------------


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_after_the_first_look_is_kept(
    tmp_path: Path, work: Path, edit: Callable[[Path], None]
) -> None:
    failpoint = once_at(Failpoint.RESTORE_TEMPORARY_WRITTEN, lambda: edit(work / "file"))
    with open_store(tmp_path / "store", failpoint=failpoint) as store:
        session = store.session("run", workspace=work)
        made = session.checkpoint()
        (work / "file").write_text("after the checkpoint")
        done = session.restore(made)
    assert edited(work / "file")
    assert "changed while the restore was under way" in details(done)["file"]
    assert drafts(work) == []


@pytest.mark.parametrize("edit", [by_rename, made_a_directory])
def test_what_appears_where_a_file_is_to_be_made_is_kept(
    tmp_path: Path, work: Path, edit: Callable[[Path], None]
) -> None:
    failpoint = once_at(Failpoint.RESTORE_TEMPORARY_WRITTEN, lambda: edit(work / "file"))
    with open_store(tmp_path / "store", failpoint=failpoint) as store:
        session = store.session("run", workspace=work)
        made = session.checkpoint()
        (work / "file").unlink()
        done = session.restore(made)
    assert edited(work / "file")
    assert "no checkpoint holds" in details(done)["file"]
    assert drafts(work) == []


@pytest.mark.parametrize("way", ["replaced", "made", "deleted"])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_after_the_last_look_is_put_back(
    tmp_path: Path,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    edit: Callable[[Path], None],
    way: str,
) -> None:
    real, todo = syscalls.rename, [edit]

    def rename(old: bytes, new: bytes, parent: int, how: int) -> bool:
        if todo:
            todo.pop()(work / "file")
        return real(old, new, parent, how)

    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        if way == "deleted":
            (work / "file").unlink()
        made = session.checkpoint()
        (work / "file").write_text("after the checkpoint")
        if way == "made":
            (work / "file").unlink()
            todo[:] = [by_rename if edit is in_place else edit]
        with monkeypatch.context() as patch:
            patch.setattr(syscalls, "rename", rename)
            done = session.restore(made)
        assert todo == []
        assert edited(work / "file")
        assert list(details(done))[:1] == ["file"]
        assert drafts(work) == []
        session.undo()


@pytest.mark.parametrize("way", ["replaced", "deleted"])
def test_where_the_system_cannot_exchange_names_an_edit_is_still_seen(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    todo = [in_place]

    def rename(*_: object) -> bool:
        if todo:
            todo.pop()(work / "file")
        return False

    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        if way == "deleted":
            (work / "file").unlink()
        made = session.checkpoint()
        then = picture(work)
        (work / "file").write_text("after the checkpoint")
        with monkeypatch.context() as patch:
            patch.setattr(syscalls, "rename", rename)
            assert list(details(session.restore(made))) == ["file"]
            assert edited(work / "file")
            assert session.restore(made).problems == ()
        assert picture(work) == then


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_that_was_taken_out_survives_a_kill(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch, edit: Callable[[Path], None]
) -> None:
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        session.checkpoint(label="then")
        (work / "file").write_text("after the checkpoint")
        session.close()
    real = syscalls.rename

    def rename(old: bytes, new: bytes, parent: int, how: int) -> bool:
        edit(work / "file")
        return real(old, new, parent, how)

    def body(_: Tell) -> None:
        monkeypatch.setattr(syscalls, "rename", rename)
        hook = kill_at(Failpoint.RESTORE_SWAPPED)
        with open_store(tmp_path / "store", failpoint=hook) as store:
            store.session("run", workspace=work).restore("then")

    assert run_child(body).by_sigkill
    [left] = [
        Path(path) for path in work.iterdir() if path.name.encode().startswith(TEMPORARY_PREFIX)
    ]
    assert edited(left)
    with mulligan.open(tmp_path / "store") as store:
        finished = store.session("run", workspace=work).internal.recovered
        assert finished is not None
        assert (work / "file").read_text() == "before the checkpoint"
        session = store.session("run", workspace=work)
        session.files.copy(finished.safety, tmp_path / "copy")
        assert edited(tmp_path / "copy" / left.name)


def test_an_editor_beside_restores_loses_nothing(tmp_path: Path, work: Path) -> None:
    """An editor adds a line at a time, by renames; every line is in the file or a checkpoint."""
    file = work / "file"
    with mulligan.open(tmp_path / "store") as store, editing(file) as editor:
        session = store.session("run", workspace=work)
        made = session.checkpoint()
        for _ in range(150):
            session.restore(made)
        written = editor.stop()
        session.checkpoint()
        versions = [session.files.read(c, "file") for c in session.checkpoints()]
    kept = set(b"\n".join(versions).split())
    assert written > 20
    lost = [number for number in range(written) if b"line%d" % number not in kept]
    assert lost == []
    assert drafts(work) == []


class Editor:
    """A process that edits a file as fast as it can."""

    def __init__(self, pid: int, told: int) -> None:
        self._pid = pid
        self._told = told

    def stop(self) -> int:
        """End it between two edits and return how many there were."""
        os.kill(self._pid, signal.SIGTERM)
        _, status = os.waitpid(self._pid, 0)
        assert status == 0
        return int(os.read(self._told, 20))


@contextmanager
def editing(file: Path) -> Iterator[Editor]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _edit(file, writing)
    os.close(writing)
    try:
        yield Editor(pid, reading)
    finally:
        os.close(reading)


def _edit(file: Path, tell: int) -> None:
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    number, rng = 0, random.Random()
    beside = file.parent.parent / "editor's own"
    while not asked:
        beside.write_bytes(file.read_bytes() + b" line%d" % number)
        beside.rename(file)
        number += 1
        select.select([], [], [], rng.uniform(0, 0.01))
    os.write(tell, b"%d" % number)
    os._exit(0)


# --- two restores at once --------------------------------------------------------------------


@contextmanager
def stopped_in_a_restore(tmp_path: Path, work: Path, name: str, at: Failpoint) -> Iterator[None]:
    """Have another process stand still in the middle of a restore; it is killed at the end."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:

        def stand_still() -> None:
            os.write(writing, b"!")
            signal.pause()

        with open_store(tmp_path / "store", failpoint=once_at(at, stand_still)) as store:
            store.session(name, workspace=work).restore("then")
        os._exit(1)
    try:
        assert os.read(reading, 1) == b"!"
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)


def prepare(tmp_path: Path, work: Path, *names: str) -> None:
    with mulligan.open(tmp_path / "store") as store:
        for name in names:
            store.session(name, workspace=work).checkpoint(label="then")
    (work / "file").write_text("after the checkpoint")


@pytest.mark.parametrize("other", ["one", "two"])
def test_two_sessions_do_not_restore_one_directory_at_once(
    tmp_path: Path, work: Path, other: str
) -> None:
    prepare(tmp_path, work, "one", "two")
    link = tmp_path / "link"
    link.symlink_to(work)
    with (
        stopped_in_a_restore(tmp_path, work, "one", Failpoint.RESTORE_TEMPORARY_WRITTEN),
        mulligan.open(tmp_path / "store") as store,
    ):
        shutil.rmtree(tmp_path / "store" / ".mulligan" / "tmp")  # it is safe to delete
        with pytest.raises(RestoreBusy, match=str(work)):
            store.session(other, workspace=link).restore("then")
        assert store.session(other).agent.lease is None
        assert len(drafts(work)) == 1, "the draft of the other one was touched"
    with mulligan.open(tmp_path / "store") as store:
        assert store.session(other, workspace=work).restore("then").problems == ()
        store.session("one", workspace=work)
        assert (work / "file").read_text() == "before the checkpoint"
        assert drafts(work) == []


def test_a_lease_is_given_up_when_another_process_restores(tmp_path: Path, work: Path) -> None:
    prepare(tmp_path, work, "one")
    point = Failpoint.RESTORE_WRITTEN
    with (
        stopped_in_a_restore(tmp_path, work, "one", point),
        mulligan.open(tmp_path / "store") as store,
    ):
        with pytest.raises(RestoreBusy):
            store.agent("coder", session="one", workspace=work)
        assert not store.session("one").internal.is_held("coder")


def test_two_sessions_never_share_the_name_of_a_draft(tmp_path: Path, work: Path) -> None:
    names = set()
    prepare(tmp_path, work, "one", "two")
    for name in ("one", "two", "one"):
        with stopped_in_a_restore(tmp_path, work, name, Failpoint.RESTORE_TEMPORARY_WRITTEN):
            names |= set(drafts(work))
        with mulligan.open(tmp_path / "store") as store:
            store.session(name, workspace=work).undo()
    assert len(names) == 3


# --- one restore in each of two directories --------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    made = tmp_path / "elsewhere"
    made.mkdir()
    (made / "file").write_text("elsewhere")
    return made


def interrupted(tmp_path: Path, work: Path) -> None:
    """Leave a restore of a session behind that was killed in the middle."""
    prepare(tmp_path, work, "run")

    def body(_: Tell) -> None:
        hook = kill_at(Failpoint.RESTORE_TEMPORARY_WRITTEN)
        with open_store(tmp_path / "store", failpoint=hook) as store:
            store.session("run", workspace=work).restore("then")

    assert run_child(body).by_sigkill


def test_a_restore_elsewhere_does_not_make_an_unfinished_one_be_forgotten(
    tmp_path: Path, work: Path, elsewhere: Path
) -> None:
    interrupted(tmp_path, work)
    with mulligan.open(tmp_path / "store") as store:
        other = store.session("run", workspace=elsewhere)
        assert other.internal.recovered is None
        there = picture(elsewhere)
        with pytest.raises(RestorePending, match=str(work)) as refused:
            other.restore("then")
        assert "abandon" in refused.value.hint
        assert picture(elsewhere) == there
        session = store.session("run", workspace=work)
        assert session.internal.recovered is not None
        assert (work / "file").read_text() == "before the checkpoint"
        assert other.restore("then").problems == ()
        assert_usable(session, work)


def test_a_restore_that_another_process_began_just_now_is_not_forgotten(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(tmp_path, work)
    with mulligan.open(tmp_path / "store") as store:
        with monkeypatch.context() as patch:
            patch.setattr(Restorer, "finish", lambda _: None)  # there was nothing to be seen yet
            session = store.session("run", workspace=work)
            with pytest.raises(RestoreBusy, match="just now"):
                session.restore("then")
        assert store.session("run", workspace=work).internal.recovered is not None
        assert (work / "file").read_text() == "before the checkpoint"


def test_an_unfinished_restore_elsewhere_can_be_abandoned(
    tmp_path: Path, work: Path, elsewhere: Path
) -> None:
    interrupted(tmp_path, work)
    with mulligan.open(tmp_path / "store") as store:
        bare = store.session("run")
        assert bare.files.pending is not None
        assert bare.files.pending.directory == str(work)
        abandoned = bare.files.abandon()
        assert abandoned is not None
        named = (abandoned.point, abandoned.directory, abandoned.seq)
        assert (abandoned.mode, *named) == ("restore", *_place(bare))
        assert not abandoned.is_running
        assert bare.files.pending is None
        assert drafts(work) == []
        assert bare.files.abandon() is None
        other = store.session("run", workspace=elsewhere)
        assert other.restore("then").problems == ()
        session = store.session("run", workspace=work)
        assert session.internal.recovered is None
        assert (work / "file").read_text() == "after the checkpoint"


def _place(session: Session) -> tuple[object, ...]:
    begun = next(e for e in session.events() if e.kind == "restore.begun")
    said = begun.payload
    return Point(said["session"], said["seq"]), said["root"], said["safety"]


def assert_usable(session: Session, work: Path) -> None:
    (work / "file").write_bytes(b"more work")
    made = session.checkpoint()
    assert session.files.read(made, "file") == b"more work"
