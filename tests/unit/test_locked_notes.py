"""Notes of what a process has made: locked while it lives, found once it is dead."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from mulligan import locked_notes
from mulligan.locked_notes import close_note, left_note, write_note


def wait_for_the_kill() -> None:
    """Wait in a child; it ends by itself if the test fails before it kills it."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(120)
    signal.pause()


def test_a_note_of_a_live_process_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "tmp" / "note"
    handle = write_note(file, b"what was made")
    assert file.read_bytes() == b"what was made"
    assert file.stat().st_mode & 0o777 == 0o600
    with left_note(file) as is_left:
        assert not is_left
    close_note(handle)
    with left_note(file) as is_left:
        assert is_left


def test_a_note_of_a_killed_process_is_found(tmp_path: Path) -> None:
    file = tmp_path / "note"
    ready, done = os.pipe()
    if (child := os.fork()) == 0:
        write_note(file, b"made")
        os.write(done, b"x")
        wait_for_the_kill()
    os.read(ready, 1)
    with left_note(file) as is_left:
        assert not is_left
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with left_note(file) as is_left:
        assert is_left
    os.close(ready)
    os.close(done)


def test_a_process_that_was_forked_meanwhile_does_not_keep_the_lock(tmp_path: Path) -> None:
    handle = write_note(tmp_path / "note", b"made")
    if (child := os.fork()) == 0:
        wait_for_the_kill()
    close_note(handle)
    with left_note(tmp_path / "note") as is_left:
        assert is_left
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_note_deleted_between_open_and_lock_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, real = tmp_path / "note", locked_notes.fcntl.flock
    close_note(write_note(file, b"made"))

    def deleted(handle: int, how: int) -> None:
        file.unlink(missing_ok=True)
        real(handle, how)

    monkeypatch.setattr(locked_notes.fcntl, "flock", deleted)
    with left_note(file) as is_left:
        assert not is_left


def test_a_note_without_a_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be made that no later process would find."""
    file, real = tmp_path / "tmp" / "note", locked_notes.sync_directory

    def emptied(directory: Path) -> None:
        real(directory)
        shutil.rmtree(directory)

    monkeypatch.setattr(locked_notes, "sync_directory", emptied)
    with pytest.raises(FileNotFoundError, match="was deleted"):
        write_note(file, b"made")


def test_a_note_that_cannot_be_written_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int, data: bytes) -> None:
        raise OSError("no space")

    monkeypatch.setattr(locked_notes, "write_all", full)
    with pytest.raises(OSError, match="no space"):
        write_note(tmp_path / "note", b"made")
    assert list(tmp_path.iterdir()) == []
