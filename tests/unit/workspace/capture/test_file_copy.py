"""Copies of files that are being written to: of one moment where that is possible, never seen."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import mulligan
from mulligan.clock import SystemClock
from mulligan.testing.clock import FakeClock
from mulligan.workspace.capture import file_copy as module
from mulligan.workspace.capture.file_copy import HOT_NANOSECONDS, FileCopies
from mulligan.workspace.capture.steady_read import MAX_READINGS
from tests.disks import cloning_disk
from tests.neighbours import neighbour

SIZE = 3 << 20


@pytest.fixture(params=["btrfs", "xfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with cloning_disk(request.param, tmp_path) as place:
        yield place


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "file").write_bytes(b"content")
    handle = os.open(tmp_path / "file", os.O_RDWR)
    yield handle
    os.close(handle)


def in_directory(place: Path) -> int:
    return os.open(place, os.O_RDONLY | os.O_DIRECTORY)


@pytest.mark.parametrize("inside", [True, False], ids=["one disk", "two disks"])
def test_a_file_under_constant_write_is_cloned_and_whole(
    disk: Path, tmp_path: Path, inside: bool
) -> None:
    work = disk / "work"
    work.mkdir()
    (work / "data").write_bytes(b"0" * SIZE)
    code = """
        import os, sys
        handle = os.open(sys.argv[1], os.O_WRONLY)
        blocks = [b"%d" % number * int(sys.argv[2]) for number in range(10)]
        print("ready", flush=True)
        while True:
            for block in blocks:
                os.pwrite(handle, block, 0)
    """
    with (
        mulligan.open(disk / "store" if inside else tmp_path / "store") as store,
        neighbour(code, work / "data", SIZE),
    ):
        session = store.session("run", workspace=work)
        for _ in range(8):
            made = session.checkpoint()
            assert made.coverage is not None
            assert (made.coverage.left_out, made.coverage.changing) == ([], [])
            found = session.files.read(made, "data")
            assert found == found[:1] * SIZE
            assert os.listdir(work) == ["data"]


def test_a_small_file_that_never_rests_is_cloned_in_the_end(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = disk / "work"
    work.mkdir()
    (work / "data").write_bytes(b"0000")
    real, numbers = os.pread, iter(range(1000))

    def rewritten(*arguments: int) -> bytes:
        data = real(*arguments)
        (work / "data").write_bytes(b"%04d" % next(numbers))
        return data

    monkeypatch.setattr(os, "pread", rewritten)
    with mulligan.open(disk / "store") as store:
        made = store.session("run", workspace=work).checkpoint()
        assert made.coverage is not None
        assert made.coverage.changing == []


def test_a_small_file_that_has_become_large_by_the_time_it_is_cloned_is_whole(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = disk / "work"
    work.mkdir()
    (work / "data").write_bytes(b"0000")
    real, reads = os.pread, iter(range(1, 1000))

    def rewritten(*arguments: int) -> bytes:
        data = real(*arguments)
        is_data = os.path.samestat(os.fstat(arguments[0]), os.stat(work / "data"))
        if is_data and (number := next(reads)) <= MAX_READINGS:
            (work / "data").write_bytes(b"%d" % number * (4 if number < MAX_READINGS else 3 << 20))
        return data

    with mulligan.open(disk / "store") as store:
        session = store.session("run", workspace=work)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pread", rewritten)
            made = session.checkpoint()
        assert session.files.read(made, "data") == (work / "data").read_bytes()


def test_a_copy_keeps_holes_and_has_no_name(tmp_path: Path) -> None:
    large = tmp_path / "sparse"
    with large.open("wb") as stream:
        stream.truncate(64 << 20)
        stream.seek(40 << 20)
        stream.write(b"in the middle")
    before = set(tmp_path.iterdir())
    handle, place = os.open(large, os.O_RDONLY), in_directory(tmp_path)
    taken = FileCopies(tmp_path, SystemClock()).copy(handle, place)
    assert taken is not None
    assert (taken.holds, taken.torn, taken.size) == (True, False, 64 << 20)
    with taken.content as copy:
        assert os.fstat(copy.fileno()).st_blocks * 512 < 8 << 20
        assert os.pread(copy.fileno(), 13, 40 << 20) == b"in the middle"
        assert set(tmp_path.iterdir()) == before
    os.close(handle)
    os.close(place)


def test_a_full_disk_for_copies_is_said_and_not_blamed_on_the_file(
    tmp_path: Path, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module.os, "pwrite", full)
    assert FileCopies(tmp_path, SystemClock())._copy(file) is None


def test_a_large_file_is_captured_where_there_is_no_room_for_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "hot").write_bytes(os.urandom(SIZE))
    monkeypatch.setattr(FileCopies, "copy", lambda *_: None)
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        made = session.checkpoint()
        assert session.files.read(made, "hot") == (work / "hot").read_bytes()


def test_a_filesystem_that_cannot_clone_is_asked_once(
    tmp_path: Path, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(*arguments: object) -> None:
        asked.append(arguments)
        raise OSError(errno.EOPNOTSUPP, "no clones")

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    aside, place = FileCopies(tmp_path, SystemClock()), in_directory(tmp_path)
    for _ in range(3):
        assert aside.clone(file, place) is None
    assert len(asked) == 2, "beside the store, and beside the file"
    os.close(place)


def test_which_files_are_hot(tmp_path: Path, file: int) -> None:
    status, clock = os.fstat(file), FakeClock()
    aside = FileCopies(tmp_path, clock)
    now = clock.wall_ns()
    for age, is_hot in (
        (0, True),
        (HOT_NANOSECONDS // 2, True),
        (-HOT_NANOSECONDS // 2, True),
        (HOT_NANOSECONDS, False),
    ):
        os.utime(file, ns=(0, now - age))
        assert aside.is_hot(os.fstat(file)) == is_hot
    assert status.st_size == 7
