"""Checkpoints that are taken while another process restores the files of the same directory."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import mulligan
from mulligan import Checkpoint, Session
from mulligan.failpoints import Failpoint
from mulligan.testing.failpoints import kill_at
from mulligan.testing.stores import open_store
from mulligan.workspace.capture.ignore import TEMPORARY
from mulligan.workspace.restore.swap import TEMPORARY_PREFIX, temporary_names
from tests.children import Tell, run_child
from tests.pictures import picture

RESTORES = 12
FILES = 60


def fill(work: Path, which: str) -> None:
    """Give every file another content and size, and each tree files of its own."""
    for path in sorted(work.rglob("*")):
        if path.is_file():
            path.unlink()
    for number in range(FILES):
        place = work / f"d{number % 5}"
        place.mkdir(exist_ok=True)
        (place / f"{number}.txt").write_text(f"{which * 40} {number}\n" * (2 + len(which)))
        (place / f"{which}-{number}.txt").write_text(which)


@contextmanager
def in_a_loop(body: Callable[[], None]) -> Iterator[None]:
    """Do something again and again in a process of its own, which is ended at a safe point."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        asked: list[int] = []
        signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
        rounds = 0
        try:
            while not asked or rounds < 3:
                body()
                rounds += 1
                if rounds == 1:
                    os.write(writing, b"!")
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    try:
        assert os.read(reading, 1) == b"!", "it could not be done even once"
        yield
    finally:
        os.kill(pid, signal.SIGTERM)
        _, status = os.waitpid(pid, 0)
        os.close(reading)
    assert os.waitstatus_to_exitcode(status) == 0


def drafts(work: Path) -> list[str]:
    return [
        path.name for path in work.rglob("*") if path.name.encode().startswith(TEMPORARY_PREFIX)
    ]


def torn(session: Session, checkpoint: Checkpoint) -> list[str]:
    """Return what differs from the nearer of both trees."""
    differences = [session.diff(label, checkpoint).files for label in ("a", "b")]
    return [change.path for change in min(differences, key=len)]


def prepare(tmp_path: Path, work: Path) -> None:
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        for which in ("a", "b"):
            fill(work, which)
            session.checkpoint(label=which)


@pytest.mark.parametrize("watching", [False, True], ids=["by scans", "watching"])
@pytest.mark.parametrize("name", ["run", "other"])
def test_a_handle_that_is_open_never_captures_a_half_restored_tree(
    tmp_path: Path, work: Path, watching: bool, name: str
) -> None:
    prepare(tmp_path, work)
    opened: list[Session] = []

    def checkpoint() -> None:
        if not opened:
            store = mulligan.open(tmp_path / "store")
            opened.append(store.session(name, workspace=work, actor="agent"))
            if watching:
                opened[0].internal.watch()
        opened[0].checkpoint("routine")

    with in_a_loop(checkpoint), mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        for number in range(RESTORES):
            assert session.restore("ab"[number % 2]).problems == ()
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        taken = [c for c in store.session(name).checkpoints() if c.kind == "routine"]
        assert taken, "none was taken meanwhile"
        assert [torn(session, checkpoint) for checkpoint in taken] == [[] for _ in taken]
        assert drafts(work) == []
        assert store.verify().problems == ()


# --- a restore whose process died ------------------------------------------------------------


def killed(tmp_path: Path, work: Path, point: Failpoint, count: int = 1) -> None:
    """Kill a restore of ``a`` at a point."""

    def body(_: Tell) -> None:
        with open_store(tmp_path / "store", failpoint=kill_at(point, count)) as store:
            store.session("run", workspace=work).restore("a")

    assert run_child(body).by_sigkill


def test_a_handle_that_is_open_finishes_what_another_process_left_half_done(
    tmp_path: Path, work: Path
) -> None:
    prepare(tmp_path, work)
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        session.checkpoint()
        killed(tmp_path, work, Failpoint.RESTORE_RENAMED, 20)
        taken = session.checkpoint("routine")
        assert session.internal.recovered is not None
        assert session.internal.recovered.point.seq == session.point("a").seq
        assert (session.files.pending, session.files.recovery_error, drafts(work)) == (
            None,
            None,
            [],
        )
        assert session.diff("a", taken).files == ()
        halfway = session.internal.recovered.safety
        assert halfway.note is not None
        assert halfway.note.startswith("halfway through restore")
        session.undo()
        assert session.diff("b").files == ()


@pytest.mark.parametrize("point", [Failpoint.RESTORE_MARKED, Failpoint.RESTORE_WRITTEN])
def test_another_session_of_the_directory_keeps_its_state_and_no_half_restored_files(
    tmp_path: Path, work: Path, point: Failpoint
) -> None:
    prepare(tmp_path, work)
    with mulligan.open(tmp_path / "store") as store:
        other = store.session("other", workspace=work)
        before = other.checkpoint()
        killed(tmp_path, work, point)
        half, here = picture(work), other.head
        other.state.set("step", 1)
        taken = other.checkpoint("routine", "a note")
        assert picture(work) == half
        assert other.head.seq == here.seq + 2
        assert taken.workspace is None
        assert taken.note is not None
        assert taken.note.startswith("a note (without files: a restore to #")
        assert "session run" in taken.note
        held = other.internal.files_at(taken)
        assert held is not None
        assert held.checkpoint == before.id
        store.session("run", workspace=work)  # finishes it
        later = other.checkpoint()
        assert (later.note, other.diff("run:a", later).files) == (None, ())


def test_a_directory_that_has_another_device_number_is_known_to_be_half_restored(
    tmp_path: Path, work: Path
) -> None:
    """As after a power cut: btrfs and others get another number with each mount."""
    prepare(tmp_path, work)
    killed(tmp_path, work, Failpoint.RESTORE_WRITTEN)
    for lock in (tmp_path / "store/.mulligan/locks").glob("*-*-*"):
        which, _, inode = lock.name.split("-")
        lock.rename(lock.with_name(f"{which}-abcdef-{inode}"))
    with mulligan.open(tmp_path / "store") as store:
        other = store.session("other", workspace=work)
        for _ in range(2):
            assert other.checkpoint().workspace is None
        store.session("run", workspace=work)  # finishes it
        assert other.diff("run:a", other.checkpoint()).files == ()


def test_a_restore_that_died_after_its_commit_keeps_no_files_out(
    tmp_path: Path, work: Path
) -> None:
    prepare(tmp_path, work)
    with mulligan.open(tmp_path / "store") as store:
        other = store.session("other", workspace=work)
        killed(tmp_path, work, Failpoint.JOURNAL_COMMITTED, 2)
        assert store.session("run").files.pending is None
        for _ in range(2):
            assert other.diff("run:a", other.checkpoint()).files == ()


# --- drafts ----------------------------------------------------------------------------------


def test_a_draft_that_stayed_behind_is_in_no_checkpoint_and_goes_at_the_next_restore(
    tmp_path: Path, work: Path
) -> None:
    prepare(tmp_path, work)
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        token = session.restore("a").safety.id[:16]
        left = work / "d1" / os.fsdecode(temporary_names(b"1.txt", token).new)
        left.write_text("half of a fi")
        taken = session.checkpoint()
        assert session.diff("a", taken).files == ()
        assert taken.coverage is not None
        assert [(out.path, out.rule) for out in taken.coverage.left_out] == [
            (f"d1/{left.name}", f"ignored by {TEMPORARY}")
        ]
        assert session.restore("b").problems == ()
        assert drafts(work) == []


@pytest.mark.parametrize("watching", [False, True], ids=["by scans", "watching"])
def test_files_of_the_user_are_captured_though_they_look_like_drafts(
    tmp_path: Path, work: Path, watching: bool
) -> None:
    prepare(tmp_path, work)
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        if watching:
            session.internal.watch()
        token = session.restore("a").safety.id[:16]
        own = temporary_names(b"1.txt", token)
        names = [
            b".mulligan-draft-notes.txt",
            temporary_names(b"1.txt", "0" * 16).new,  # of no restore of this store
            own.new + b".txt",
            own.swap,  # what a restore took out, and somebody had changed
        ]
        for name in names:
            (work / os.fsdecode(name)).write_text("mine")
        taken = session.checkpoint()
        for name in names:
            assert session.files.read(taken, os.fsdecode(name)) == b"mine"
