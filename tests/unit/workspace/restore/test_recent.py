"""What a restore must sync although it leaves it as it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mulligan import Session
from mulligan.workspace.capture.index import (
    SETTLED_AFTER_NS,
    STAT,
    Edits,
    Index,
    Seen,
    SeenDirectory,
    Synced,
)
from mulligan.workspace.restore.recent import Recent, recently_changed

NOW = 10 * SETTLED_AFTER_NS + 1
"""The time of the capture; odd, as on a filesystem with fine times."""
OLD = NOW - 2 * SETTLED_AFTER_NS
SHORTLY_BEFORE = NOW - SETTLED_AFTER_NS // 2


def index(**changed: int) -> Index:
    """Return an index of one directory in which files changed at these times."""
    leaves = {
        name.encode(): Seen(STAT.pack(time, time, 1, number), 1, b"")
        for number, (name, time) in enumerate(changed.items())
    }
    root = SeenDirectory(1, OLD, OLD, 0o755, leaves, {}, {})
    return Index(1, "/w", "", NOW, b"", {b"": root}, len(leaves), 0, {}, Edits(b""))


def synced(until: int) -> Synced:
    """Return what a restore has synced that knew the directory of ``index``."""
    return Synced(until, frozenset({1}))


def test_only_recent_files_are_synced() -> None:
    found = list(recently_changed(index(old=OLD, new=SHORTLY_BEFORE), []))
    assert found == [Recent((), [b"new"])]


def test_what_a_restore_has_synced_is_not_synced_again() -> None:
    captured = index(before=SHORTLY_BEFORE, after=SHORTLY_BEFORE + 2)
    found = list(recently_changed(captured, [], synced=synced(SHORTLY_BEFORE + 1)))
    assert found == [Recent((), [b"after"])]


def test_a_sync_in_the_future_says_nothing() -> None:
    """The clock was set back: files that changed since look older than the sync."""
    found = list(recently_changed(index(new=SHORTLY_BEFORE), [], synced=synced(NOW + 1)))
    assert found == [Recent((), [b"new"])]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    (made / "one").write_text("1")
    (made / "two").write_text("1")
    return made


def synced_until(session: Session) -> int:
    workspace = session.internal._workspace
    assert workspace is not None
    return workspace._state.synced.until


def test_a_whole_restore_remembers_what_it_synced(session: Session, work: Path) -> None:
    made = session.checkpoint()
    (work / "one").write_text("2")
    session.restore(made)
    assert 0 < synced_until(session) < (work / "one").stat().st_ctime_ns


def test_a_restore_of_a_part_has_not_synced_the_rest(session: Session, work: Path) -> None:
    made = session.checkpoint()
    (work / "one").write_text("2")
    session.restore(made, only=["one"])
    assert synced_until(session) == 0


def test_a_restore_that_could_not_sync_remembers_nothing(
    session: Session, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = session.checkpoint()
    (work / "one").write_text("2")
    real = os.fsync

    def fail(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").startswith(str(work)):
            raise OSError(5, "Input/output error")
        real(handle)

    monkeypatch.setattr(os, "fsync", fail)
    session.restore(made)
    assert synced_until(session) == 0


def test_files_in_a_directory_that_was_moved_here_since_are_synced(
    session: Session, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They changed before the restore that did not know them, and nothing since."""
    made = session.checkpoint()
    (tmp_path / "elsewhere/inner").mkdir(parents=True)
    (tmp_path / "elsewhere/inner/file").write_text("recent")
    # Until the clock of the filesystem has gone on: what is as new as the capture counts as newer.
    while synced_until(session) <= (tmp_path / "elsewhere/inner/file").stat().st_ctime_ns:
        (work / "one").write_text("2")
        session.restore(made)
    (tmp_path / "elsewhere").rename(work / "moved")
    before = session.checkpoint()
    (work / "one").write_text("3")
    done: list[str] = []
    real = os.fsync

    def note(handle: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", note)
    session.restore(before)
    assert str(work / "moved/inner/file") in done
