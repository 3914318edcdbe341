"""Copies that share bytes with the workspace: only where they are sure to be the checkpoint's."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mulligan
from mulligan import Session
from mulligan.model import Checkpoint, ObjectKind
from mulligan.workspace.capture import index
from tests.pictures import picture

ANY_AGE = -(10**12)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of its own that can share bytes between files."""
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(400 << 20)
    maker = next(filter(shutil.which, ("mkfs.btrfs", "mkfs.xfs")), None)
    if maker is None:
        pytest.skip("there is no program here that makes such a filesystem")
    for command in ([maker, "-q", image], ["mount", "-o", "loop", image, place]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"it cannot be made here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


class Counted:
    """Counts how often bytes of files are read from the store, and clones are asked for."""

    def __init__(self, session: Session, patch: pytest.MonkeyPatch) -> None:
        self.read = self.cloned = 0
        objects, clone = session._engine.objects, fcntl.ioctl
        get, get_all = objects.get, objects.get_all

        def counted_get(kind: int, digest: bytes) -> bytes:
            self.read += kind == ObjectKind.CHUNK
            return get(kind, digest)

        def counted_all(kind: int, digests: object) -> object:
            for found in get_all(kind, digests):
                self.read += 1
                yield found

        def counted_clone(*arguments: object) -> object:
            self.cloned += 1
            return clone(*arguments)

        patch.setattr(objects, "get", counted_get)
        patch.setattr(objects, "get_all", counted_all)
        patch.setattr(fcntl, "ioctl", counted_clone)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], tuple[Session, Checkpoint, Path]]:
    """Make a session whose files count as old enough to be shared."""
    monkeypatch.setattr(index, "SETTLED_AFTER_NS", ANY_AGE)
    monkeypatch.setattr(index, "TIMESTAMP_GRAIN_NS", ANY_AGE)
    monkeypatch.setattr(index, "COARSE_TIMESTAMP_GRAIN_NS", ANY_AGE)

    def make(place: Path) -> tuple[Session, Checkpoint, Path]:
        work = place / "work"
        (work / "src").mkdir(parents=True)
        rng = random.Random(1)
        (work / "large").write_bytes(rng.randbytes(5_000_000))
        (work / "src" / "small").write_bytes(rng.randbytes(9000))
        (work / "src" / "run").write_bytes(b"#!/bin/sh\n" * 500)
        (work / "src" / "run").chmod(0o755)
        (work / "empty").touch()
        session = mulligan.open(place / "store").session("run", workspace=work)
        return session, session.checkpoint(), work

    return make


Make = Callable[[Path], tuple[Session, Checkpoint, Path]]


def test_unchanged_files_share_their_bytes(
    disk: Path, made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, checkpoint, work = made(disk)
    count = Counted(session, monkeypatch)
    os.sync()
    free = os.statvfs(disk).f_bfree * os.statvfs(disk).f_frsize
    session.fork(checkpoint, workspace=disk / "fork")
    assert picture(disk / "fork") == picture(work)
    assert (count.read, count.cloned) == (0, 3)
    assert free - os.statvfs(disk).f_bfree * os.statvfs(disk).f_frsize < 2_000_000
    with (work / "large").open("r+b") as file:
        file.write(b"in the workspace alone")
    assert not (disk / "fork" / "large").read_bytes().startswith(b"in the workspace")


def test_a_changed_file_is_written_from_the_store(
    disk: Path, made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, checkpoint, work = made(disk)
    then = picture(work)
    for name in ("large", "src/small"):
        before = (work / name).stat()
        with (work / name).open("r+b") as file:
            file.write(b"changed")
        os.utime(work / name, ns=(before.st_atime_ns, before.st_mtime_ns))
    count = Counted(session, monkeypatch)
    session.fork(checkpoint, workspace=disk / "fork")
    assert picture(disk / "fork") == then
    assert count.cloned == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_file_that_is_changed_while_it_is_shared_is_written_from_the_store(
    disk: Path, made: Make, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    session, checkpoint, work = made(disk)
    then, clone = picture(work), fcntl.ioctl

    def edited(handle: int, request: int, source: int) -> None:
        if when == "after":
            clone(handle, request, source)
        for name in ("large", "src/small", "src/run"):
            with (work / name).open("r+b") as file:
                file.write(b"changed")
        if when == "before":
            clone(handle, request, source)

    monkeypatch.setattr(fcntl, "ioctl", edited)
    session.fork(checkpoint, workspace=disk / "fork")
    assert picture(disk / "fork") == then


def test_what_was_changed_shortly_before_its_capture_is_not_shared(
    disk: Path, made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, checkpoint, work = made(disk)
    monkeypatch.setattr(index, "SETTLED_AFTER_NS", 10**9)
    count = Counted(session, monkeypatch)
    session.fork(checkpoint, workspace=disk / "fork")
    assert count.cloned == 0
    assert picture(disk / "fork") == picture(work)


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EXDEV])
def test_where_nothing_can_be_shared_it_is_tried_once(
    tmp_path: Path, made: Make, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    session, checkpoint, work = made(tmp_path)
    asked = []

    def refuse(*_: object) -> None:
        asked.append(1)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    session.fork(checkpoint, workspace=tmp_path / "fork")
    assert asked == [1]
    assert picture(tmp_path / "fork") == picture(work)
