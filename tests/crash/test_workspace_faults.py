"""Full disks and failing writes while files are captured and restored: nothing is lost."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mulligan
from mulligan import Session
from mulligan.errors import DiskFull, MulliganError, StoreUnwritable
from mulligan.failpoints import Failpoint
from mulligan.session.write.writer import Writer
from mulligan.testing.failpoints import fail_at
from mulligan.testing.stores import open_store
from mulligan.workspace import syscalls
from mulligan.workspace.capture.index import TIMESTAMP_GRAIN_NS
from mulligan.workspace.restore.swap import TEMPORARY_PREFIX
from tests.children import Tell, run_child
from tests.disks import disk_of, mount
from tests.pictures import picture

RESTORE_POINTS = [point for point in Failpoint if point.name.startswith("RESTORE_")]
WRITE_POINTS = [point for point in Failpoint if point.name.startswith(("PACK_FRAME", "JOURNAL_"))]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for three megabytes."""
    with disk_of(3, tmp_path / "disk") as place:
        yield place


def enlarge(disk: Path) -> None:
    mount("-o", "remount,size=40m", str(disk))


def fill(work: Path, rng: random.Random) -> None:
    """Make three files of 400 KB, two of which a restore will have to bring back."""
    work.mkdir()
    for name in ("one", "two", "kept"):
        (work / name).write_bytes(rng.randbytes(400_000))
    (work / "small").write_bytes(b"small")


def drafts(work: Path) -> list[str]:
    return [
        path.name for path in work.rglob("*") if path.name.encode().startswith(TEMPORARY_PREFIX)
    ]


# --- no space for the files ------------------------------------------------------------------


def test_a_full_disk_during_a_restore_leaves_every_file_whole(
    tmp_path: Path, small_disk: Path
) -> None:
    work, rng = small_disk / "work", random.Random(1)
    fill(work, rng)
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        session.state.set("a", 1)
        then, made = picture(work), session.checkpoint()
        (work / "one").unlink()
        (work / "two").write_bytes(b"written since")
        (work / "small").write_bytes(b"changed since")
        (work / "filler").write_bytes(rng.randbytes(2_300_000))
        session.state.set("a", 2)
        now = picture(work)
        with pytest.raises(DiskFull, match="no space left to write") as full:
            session.restore(made)
        assert "Free some space" in full.value.hint
        assert drafts(work) == []
        half = picture(work)
        for path in {*half, *now} - {b""}:
            assert half.get(path) in (now.get(path), then.get(path)), f"{path!r} is torn"
        assert half[b"filler"] == now[b"filler"], "deletions come last"
        assert session.state.get("a") == 2
        enlarge(small_disk)
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        assert session.internal.recovered is not None
        assert session.internal.recovered.problems == ()
        assert (picture(work), session.state.get("a")) == (then, 1)
        session.undo()
        assert (picture(work), session.state.get("a")) == (now, 2)
        assert store.verify().ok


def test_a_restore_is_tried_again_when_there_is_space(tmp_path: Path, small_disk: Path) -> None:
    work, rng = small_disk / "work", random.Random(2)
    fill(work, rng)
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        then, made = picture(work), session.checkpoint()
        (work / "one").unlink()
        (work / "filler").write_bytes(rng.randbytes(2_150_000))
        now = picture(work)
        for _ in range(2):
            with pytest.raises(DiskFull):
                session.restore(made)
        enlarge(small_disk)
        session.restore(made)
        assert picture(work) == then
        session.undo()  # the last call
        session.undo()  # what the first one had left to be done
        assert picture(work) == now


def test_no_space_to_keep_the_present_means_that_nothing_is_touched(small_disk: Path) -> None:
    work, rng = small_disk / "work", random.Random(3)
    work.mkdir()
    with mulligan.open(small_disk / "store") as store:
        session = store.session("run", workspace=work)
        (work / "file").write_bytes(b"one")
        then, made = picture(work), session.checkpoint()
        free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        (work / "file").write_bytes(b"two")
        (work / "filler").write_bytes(rng.randbytes(free * 2 // 3))
        now = picture(work)
        with pytest.raises(DiskFull):
            session.restore(made)
        bare = session.checkpoint()
        assert bare.coverage is not None
        assert "less than" in (bare.coverage.refused or "")
        assert picture(work) == now
        enlarge(small_disk)
        assert session.restore(made).problems == ()
        assert picture(work) == then
        session.undo()
        assert picture(work) == now
        assert store.verify().ok


@pytest.mark.parametrize("files", [3, 70], ids=["few", "many"])
def test_every_filesystem_of_a_workspace_is_synced(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    devices, real, one = set(), syscalls.sync_filesystem, os.fsync

    def noted(sync: Callable[[int], None]) -> Callable[[int], None]:
        return lambda handle: devices.add(os.fstat(handle).st_dev) or sync(handle)

    places = (tmp_path / "own", small_disk / "mounted")
    for place in places:
        place.mkdir()
        for number in range(files):
            (place / str(number)).write_bytes(b"%d" % number)
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=tmp_path, force=True)
        made = session.checkpoint()
        for place in places:
            for number in range(files):
                (place / str(number)).unlink()
        monkeypatch.setattr(syscalls, "sync_filesystem", noted(real))
        monkeypatch.setattr(os, "fsync", noted(one))
        assert session.restore(made).problems == ()
    assert devices == {os.stat(place).st_dev for place in places}


def test_no_space_for_a_fork_is_said(tmp_path: Path, small_disk: Path) -> None:
    work, rng = tmp_path / "work", random.Random(4)
    fill(work, rng)
    (work / "more").write_bytes(rng.randbytes(2_500_000))
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        made = session.checkpoint()
        for attempt in (session.fork, session.files.copy):
            with pytest.raises(DiskFull, match="no space left"):
                attempt(made, **_to(attempt.__name__, small_disk))
        assert [s.name for s in store.sessions()] == ["run"]


def _to(name: str, disk: Path) -> dict[str, Path]:
    return {"workspace": disk / name} if name == "fork" else {"to": disk / name}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["pwrite", "fsync", "rename", "mkdir", "symlink"])
def test_whatever_finds_the_disk_full_it_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    work = tmp_path / "work"
    (work / "directory").mkdir(parents=True)
    (work / "directory" / "file").write_bytes(b"content")
    (work / "link").symlink_to("directory")
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        then, made = picture(work), session.checkpoint()
        (work / "directory" / "file").unlink()
        (work / "directory").rmdir()
        (work / "link").unlink()
        module = syscalls if call == "rename" else os
        real = getattr(module, call)

        def full(*arguments: object, **options: object) -> object:
            inside = "dir_fd" in options or call in ("fsync", "rename")
            if call == "pwrite":  # the store writes that way, too
                inside = os.readlink(f"/proc/self/fd/{arguments[0]}").startswith(str(work))
            if inside:
                raise OSError(code, os.strerror(code))
            return real(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(module, call, full)
            with pytest.raises(DiskFull):
                session.restore(made)
        assert drafts(work) == []
        assert session.files.recover() is not None
        assert picture(work) == then


# --- writes of the store that fail -----------------------------------------------------------


@pytest.mark.parametrize("point", WRITE_POINTS)
def test_a_failed_checkpoint_of_files_does_not_spoil_the_next(
    tmp_path: Path, point: Failpoint
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "file").write_bytes(b"one")
    armed = False
    hook = fail_at(point, OSError(errno.ENODEV, "broken"))

    def failpoint(reached: Failpoint) -> None:
        if armed:
            hook(reached)

    with open_store(tmp_path / "store", failpoint=failpoint) as store:
        session = store.session("run", workspace=work)
        session.checkpoint()
        (work / "file").write_bytes(b"two " * 1000)
        (work / "new").mkdir()
        then = picture(work)
        armed = True
        with pytest.raises((OSError, MulliganError)):
            session.checkpoint()
        armed = False
        made = session.checkpoint()
        assert store.verify().problems == ()
        (work / "file").unlink()
        assert session.restore(made).problems == ()
        assert picture(work) == then


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("size", [30_000, 1_500_000], ids=["whole files", "chunks"])
def test_an_error_of_the_store_is_not_taken_for_one_of_a_file(
    tmp_path: Path, size: int, code: int
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for number in range(12_000_000 // size):
        (work / str(number)).write_bytes(random.Random(number).randbytes(size))
    hook = fail_at(Failpoint.PACK_FRAME_HALF_WRITTEN, OSError(code, os.strerror(code)))
    with open_store(tmp_path / "store", failpoint=hook) as store:
        session = store.session("run", workspace=work)
        with pytest.raises(StoreUnwritable, match=os.strerror(code)):
            session.checkpoint()
        made = session.checkpoint()
        assert made.coverage is not None
        assert made.coverage.left_out == []
        assert store.verify().problems == ()


def test_a_pack_that_may_not_grow_is_no_unreadable_file(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for number in range(300):
        (work / str(number)).write_bytes(random.Random(number).randbytes(30_000))

    def body(tell: Tell) -> None:
        with mulligan.open(tmp_path / "store") as store:
            session = store.session("run", workspace=work)
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
            with pytest.raises(StoreUnwritable, match="File too large"):
                session.checkpoint()
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            made = session.checkpoint()
            tell(f"{made.coverage and made.coverage.files}")

    assert run_child(body).told == ["300"]


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", WRITE_POINTS + RESTORE_POINTS)
def test_a_restore_whose_writes_fail_is_done_or_can_be_completed(
    tmp_path: Path, point: Failpoint, nth: int
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for number in range(3):
        (work / str(number)).write_bytes(b"%d" % number * 3000)
    armed = False
    hook = fail_at(point, RuntimeError("broken"), nth)

    def failpoint(reached: Failpoint) -> None:
        if armed:
            hook(reached)

    with open_store(tmp_path / "store", failpoint=failpoint) as store:
        session = store.session("run", workspace=work)
        session.state.set("a", 1)
        then, made = picture(work), session.checkpoint()
        for number in range(3):
            (work / str(number)).write_bytes(b"changed %d" % number)
        (work / "new").mkdir()
        (work / "new" / "file").write_bytes(b"new")
        session.state.set("a", 2)
        now = picture(work)
        armed = True
        try:
            session.restore(made)
        except (RuntimeError, MulliganError):
            pass
        else:
            assert nth == 2, f"{point} was not reached"
        armed = False
        again = store.session("run", workspace=work)
        assert again.state.get("a") in (1, 2)
        if again.state.get("a") == 2:
            assert picture(work) == now, "it was never begun"
            again.restore(made)
        assert (picture(work), again.state.get("a")) == (then, 1)
        again.undo()
        assert (picture(work), again.state.get("a")) == (now, 2)
        assert store.verify().problems == ()
        assert_usable(again, work)


def assert_usable(session: Session, work: Path) -> None:
    (work / "0").write_bytes(b"more work")
    made = session.checkpoint()
    assert session.files.read(made, "0") == b"more work"


# --- struck between a capture and its commit -------------------------------------------------


def test_a_capture_that_was_never_stored_is_never_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        session.state.set("a", 1)
        session.checkpoint(label="before")
        (work / "file").write_bytes(b"new")
        time.sleep(2 * TIMESTAMP_GRAIN_NS / 1e9)  # so that its times are trusted
        with monkeypatch.context() as patched:
            patched.setattr(Writer, "commit", _struck)
            with pytest.raises(KeyboardInterrupt):
                session.checkpoint()
        session.restore("before", only=["a"])
        session.checkpoint(label="after")
        assert session.files.read("after", "file") == b"new"
        assert store.verify().ok


def _struck(*_: object) -> None:
    raise KeyboardInterrupt
