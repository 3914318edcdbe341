"""Pointers: read, written whole or not at all, and never mistaken for something else."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import stat
from pathlib import Path

import pytest

import mulligan
from mulligan.errors import UnknownFormat
from mulligan.failpoints import Failpoint
from mulligan.locate.find import sweep
from mulligan.locate.pointer import read_pointer, write_pointer
from mulligan.testing.failpoints import kill_at


@pytest.fixture
def store(tmp_path: Path) -> str:
    with mulligan.open(tmp_path / "store") as made:
        return str(made.path)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def test_what_is_written_is_read(store: str, work: Path) -> None:
    write_pointer(work, store, "bold")
    found = read_pointer(work)
    assert found is not None
    assert (found.directory, found.store, found.session) == (work, store, "bold")
    assert found.is_in_place
    assert found.names(Path(store))
    assert stat.S_IMODE((work / ".mulligan").stat().st_mode) == 0o600
    assert [entry.name for entry in work.iterdir()] == [".mulligan"]


def test_a_move_keeps_it_in_place_and_a_copy_does_not(store: str, work: Path) -> None:
    write_pointer(work, store)
    copy = read_pointer(shutil.copytree(work, work.with_name("copy")))
    moved = read_pointer(work.rename(work.with_name("moved")))
    assert copy
    assert not copy.is_in_place
    assert moved
    assert moved.is_in_place


def test_it_names_the_store_by_its_id_wherever_that_is(store: str, work: Path) -> None:
    write_pointer(work, store)
    found = read_pointer(work)
    elsewhere = Path(store).rename(work.with_name("elsewhere"))
    assert found
    assert found.names(elsewhere)
    with mulligan.open(work.with_name("other")) as other:
        assert not found.names(Path(str(other.path)))


NO_PATHS = [b'{"store": "a\\u0000b"}', b'{"store": "/a\\ud800b"}']


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"store": 1}', b"\xff", b"x" * 100_000, *NO_PATHS]
)
def test_garbage_is_no_pointer(work: Path, content: bytes) -> None:
    (work / ".mulligan").write_bytes(content)
    assert read_pointer(work) is None


def test_a_pointer_of_a_later_version_is_refused(work: Path) -> None:
    (work / ".mulligan").write_text(json.dumps({"version": 2, "store": "/x"}))
    with pytest.raises(UnknownFormat):
        read_pointer(work)


def test_neither_symlinks_nor_fifos_are_pointers(store: str, work: Path) -> None:
    real = work.with_name("real")
    real.mkdir()
    write_pointer(real, store)
    (work / ".mulligan").symlink_to(real / ".mulligan")
    assert read_pointer(work) is None
    (work / ".mulligan").unlink()
    os.mkfifo(work / ".mulligan")
    assert read_pointer(work) is None


@pytest.mark.parametrize("point", [Failpoint.POINTER_WRITTEN, Failpoint.POINTER_IN_PLACE])
def test_killed_on_the_way_it_is_the_old_one_or_the_new_one(
    store: str, work: Path, point: Failpoint
) -> None:
    write_pointer(work, store, "old")
    pid = os.fork()
    if pid == 0:
        write_pointer(work, store, "new", kill_at(point))
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    found = read_pointer(work)
    assert found
    assert found.session == ("new" if point is Failpoint.POINTER_IN_PLACE else "old")


def test_a_draft_that_is_swept_before_it_is_locked_is_made_again(
    store: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, swept = fcntl.flock, []

    def sweep_first(handle: int, operation: int) -> None:
        if not swept:
            swept.append(True)
            sweep(work)
        real(handle, operation)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    write_pointer(work, store)
    assert [entry.name for entry in work.iterdir()] == [".mulligan"]


def test_an_empty_draft_of_a_killed_process_is_swept(work: Path) -> None:
    (work / ".mulligan.new-0123").touch()
    sweep(work)
    assert list(work.iterdir()) == []
