"""Forks with a directory of their own: complete, independent, and refused with a reason."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import mulligan
from mulligan import Session
from mulligan.errors import ReadOnlyStore, SessionExists, UnknownPoint, UnsafeWorkspace
from mulligan.store import Store
from tests.pictures import picture


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    (made / "src").mkdir(parents=True)
    (made / "src" / "app.py").write_text("print('one')\n")
    (made / "src" / "app.py").chmod(0o755)
    (made / "link").symlink_to("src")
    (made / "empty").mkdir()
    made.chmod(0o750)
    return made


@pytest.fixture
def session(store: Store, work: Path) -> Session:
    opened = store.session("run", workspace=work)
    opened.state.set("a", 1)
    return opened


def test_a_fork_has_the_files_and_the_state_of_its_point(
    session: Session, work: Path, tmp_path: Path
) -> None:
    then, made = picture(work), session.checkpoint()
    shutil.rmtree(work / "src")
    session.state.set("a", 2)
    forked = session.fork(made, workspace=tmp_path / "fork")
    assert picture(tmp_path / "fork") == then
    assert forked.state.get("a") == 1
    assert not (work / "src").exists()


def test_a_store_on_a_read_only_file_system_makes_no_fork(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with mulligan.open(tmp_path / "work") as store:
        store.session("run", workspace=tmp_path / "work").checkpoint()
    place = tmp_path / "work" / ".mulligan"
    for options in (["--bind", place, place], ["-o", "remount,ro,bind", place]):
        if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
            pytest.skip("mounting is not permitted here")
    try:
        with mulligan.open(tmp_path / "work") as store:
            session = store.session("run", workspace=tmp_path / "work")
            with pytest.raises(ReadOnlyStore, match="opened for reading"):
                session.fork("@latest", workspace=tmp_path / "fork")
        assert not (tmp_path / "fork").exists()
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_what_is_written_in_one_never_shows_in_the_other(
    store: Store, session: Session, work: Path, tmp_path: Path
) -> None:
    made = session.checkpoint()
    forked = session.fork(made, name="fork", workspace=tmp_path / "fork")
    app, copy = work / "src" / "app.py", tmp_path / "fork" / "src" / "app.py"
    assert app.stat().st_ino != copy.stat().st_ino
    with copy.open("r+") as file:
        file.write("in place")
    (tmp_path / "fork" / "new").touch()
    assert app.read_text() == "print('one')\n"
    assert not (work / "new").exists()
    own = forked.checkpoint()
    app.write_text("elsewhere")
    there = picture(tmp_path / "fork")
    session.restore(made)
    assert picture(tmp_path / "fork") == there
    here = picture(work)
    (tmp_path / "fork" / "new").unlink()
    forked.restore(own)
    assert (picture(work), picture(tmp_path / "fork")) == (here, there)
    assert store.verify().ok


def test_a_fork_goes_on_with_undo_of_its_own(session: Session, work: Path, tmp_path: Path) -> None:
    made = session.checkpoint()
    (work / "src" / "app.py").write_text("two")
    session.restore(made)
    forked = session.fork(session.head, workspace=tmp_path / "fork")
    first = forked.checkpoint()
    (tmp_path / "fork" / "src" / "app.py").write_text("three")
    here, there = picture(work), picture(tmp_path / "fork")
    forked.restore(first)
    forked.undo()
    assert (picture(work), picture(tmp_path / "fork")) == (here, there)


def test_a_forks_directory_can_be_moved_and_opened_again(
    store: Store, session: Session, work: Path, tmp_path: Path
) -> None:
    made = session.checkpoint()
    session.fork(made, name="fork", workspace=tmp_path / "fork")
    (tmp_path / "fork").rename(tmp_path / "moved")
    again = store.session("fork", workspace=tmp_path / "moved")
    (tmp_path / "moved" / "src" / "app.py").unlink()
    assert again.restore(made).problems == ()
    assert picture(tmp_path / "moved") == picture(work)


def test_a_fork_into_an_empty_directory_takes_it(
    session: Session, work: Path, tmp_path: Path
) -> None:
    made = session.checkpoint()
    (tmp_path / "fork").mkdir()
    (tmp_path / "fork").chmod(work.stat().st_mode & 0o777)
    session.fork(made, workspace=tmp_path / "fork")
    assert picture(tmp_path / "fork") == picture(work)


def test_a_fork_that_is_impossible_says_why_and_leaves_nothing(
    store: Store, session: Session, work: Path, tmp_path: Path
) -> None:
    before_files = session.head
    made = session.checkpoint()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "own").touch()
    sessions = len(store.sessions())
    here = picture(work)
    with pytest.raises(UnsafeWorkspace, match="not an empty directory"):
        session.fork(made, workspace=tmp_path / "full")
    with pytest.raises(UnsafeWorkspace, match="inside the workspace"):
        session.fork(made, workspace=work / "fork")
    with pytest.raises(UnknownPoint, match="holds files"):
        session.fork(before_files, workspace=tmp_path / "fork")
    with pytest.raises(UnsafeWorkspace, match="no workspace"):
        store.session("run").fork(made, workspace=tmp_path / "fork")
    with pytest.raises(SessionExists):
        session.fork(made, name="run", workspace=tmp_path / "fork")
    assert not (tmp_path / "fork").exists()
    assert len(store.sessions()) == sessions
    assert picture(work) == here
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["own"]
