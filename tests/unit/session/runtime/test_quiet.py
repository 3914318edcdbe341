"""Checkpoints of files that others change: when they are taken, and when none is."""

from __future__ import annotations

from pathlib import Path

import pytest

from mulligan import Session
from mulligan.errors import DiskFull
from mulligan.session.runtime.quiet import QuietCheckpoints
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store
from mulligan.workspace.workspace import Workspace

QUIET, LONGEST = 2.0, 60.0


@pytest.fixture
def session(clock: FakeClock, work: Path) -> Session:
    return open_store("memory:", clock=clock).session("run", workspace=work)


@pytest.fixture
def quiet(session: Session) -> QuietCheckpoints:
    made = QuietCheckpoints(session, QUIET, LONGEST)
    assert made.take() is not None
    return made


def test_a_change_is_kept_once_the_files_are_quiet(
    quiet: QuietCheckpoints, clock: FakeClock, work: Path, session: Session
) -> None:
    (work / "a").write_text("one")
    assert quiet.look() is None
    clock.advance(QUIET - 0.1)
    (work / "a").write_text("two")
    assert quiet.look() is None
    clock.advance(QUIET - 0.1)
    assert quiet.look() is None
    clock.advance(0.1)
    taken = quiet.look()
    assert taken is not None
    assert session.files.read(taken, "a") == b"two"
    clock.advance(LONGEST)
    assert quiet.look() is None


def test_files_that_never_are_quiet_are_kept_after_the_longest_wait(
    quiet: QuietCheckpoints, clock: FakeClock, work: Path
) -> None:
    taken = []
    for number in range(70):
        (work / "log").write_text(str(number))
        taken.append(quiet.look())
        clock.advance(1.0)
    assert [number for number, one in enumerate(taken) if one is not None] == [60]


def test_a_file_that_is_as_it_was_needs_no_checkpoint(
    quiet: QuietCheckpoints, clock: FakeClock, work: Path, session: Session
) -> None:
    mode = work.stat().st_mode
    work.chmod(0o700)
    work.chmod(mode)
    quiet.look()
    head = session.head
    clock.advance(QUIET)
    assert quiet.look() is None
    assert session.head == head


def test_a_checkpoint_that_failed_is_tried_again_although_nothing_changes(
    quiet: QuietCheckpoints,
    clock: FakeClock,
    work: Path,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*args: object, **options: object) -> None:
        raise DiskFull("There is no space left.")

    (work / "a").write_text("one")
    quiet.look()
    clock.advance(QUIET)
    monkeypatch.setattr(session, "checkpoint", full)
    with pytest.raises(DiskFull):
        quiet.look()
    clock.advance(QUIET)
    assert quiet.look() is None
    monkeypatch.undo()
    clock.advance(LONGEST)
    taken = quiet.look()
    assert taken is not None
    assert session.files.read(taken, "a") == b"one"
    clock.advance(LONGEST)
    assert quiet.look() is None


def test_without_a_watcher_the_files_are_scanned_after_the_longest_wait(
    quiet: QuietCheckpoints,
    clock: FakeClock,
    work: Path,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session.internal, "look_for_changes", lambda: None)
    (work / "a").write_text("one")
    assert quiet.look() is None
    clock.advance(LONGEST)
    assert quiet.look() is not None
    assert quiet.look() is None
    clock.advance(LONGEST)
    assert quiet.look() is None


def test_a_file_that_changes_after_it_was_read_is_kept_by_the_next_checkpoint(
    quiet: QuietCheckpoints,
    clock: FakeClock,
    work: Path,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drain = Workspace._drain_names

    def changed(workspace: Workspace) -> set[bytes] | None:
        monkeypatch.undo()
        assert (work / "a").read_text() == "one"
        (work / "a").write_text("two")
        return drain(workspace)

    (work / "a").write_text("one")
    quiet.look()
    clock.advance(QUIET)
    monkeypatch.setattr(Workspace, "_drain_names", changed)
    assert quiet.look() is not None
    quiet.look()
    clock.advance(QUIET)
    quiet.look()
    assert session.files.read("@latest", "a") == b"two"
