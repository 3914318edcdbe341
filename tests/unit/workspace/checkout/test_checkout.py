"""Trees written into new directories: exactly the checkpoint, whatever the surroundings."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import mulligan
from mulligan import Session, codec
from mulligan.errors import DamagedObject, DiskFull, RestoreIncomplete, UnsafeWorkspace
from mulligan.failpoints import Failpoint
from mulligan.model import Digest
from mulligan.store import Store
from mulligan.testing.stores import open_store
from mulligan.workspace import syscalls
from mulligan.workspace.checkout import file_writer
from mulligan.workspace.fsync import MAX_FILES_SYNCED_ONE_BY_ONE
from tests.disks import disk_of
from tests.nobody import as_nobody, place_of_nobody
from tests.pictures import picture


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def many(work: Path) -> None:
    """Make more directories than are held open, and files of every kind and size."""
    rng = random.Random(1)
    for number in range(file_writer.OPEN_DIRECTORIES + 20):
        place = work / f"d{number % 7}" / f"e{number}" / "deep"
        place.mkdir(parents=True)
        for name, size in (("empty", 0), ("small", 100), ("same", 7)):
            (place / name).write_bytes(b"content" if name == "same" else rng.randbytes(size))
    (work / "large").write_bytes(rng.randbytes(3_000_000))
    (work / "link").symlink_to("large")
    (work / "dangling").symlink_to(b"nowhere/\xff".decode(errors="surrogateescape"))
    (work / b"\xff\xfe".decode(errors="surrogateescape")).write_bytes(b"no text")
    for mode in (0o400, 0o444, 0o644, 0o755, 0o666, 0o777, 0o000, 0o4755, 0o2750, 0o1777):
        (work / f"{mode:o}").write_bytes(b"%o" % mode)
        (work / f"{mode:o}").chmod(mode)
        (work / f"{mode:o} too").write_bytes(b"the second of its mode")
        (work / f"{mode:o} too").chmod(mode)
    (work / "closed").mkdir()
    (work / "closed" / "inside").write_bytes(b"inside")
    (work / "closed").chmod(0o500)


@pytest.mark.usefixtures("umask")
def test_a_copy_is_the_tree_whatever_the_umask(
    session: Session, work: Path, tmp_path: Path
) -> None:
    many(work)
    made = session.checkpoint()
    before = len(os.listdir("/proc/self/fd"))
    assert session.files.copy(made, tmp_path / "copy") == []
    assert picture(tmp_path / "copy") == picture(work)
    assert len(os.listdir("/proc/self/fd")) < before + 10


def test_inherited_access_lists_are_not_part_of_a_copy(
    session: Session, work: Path, tmp_path: Path
) -> None:
    (work / "src").mkdir()
    (work / "src" / "file").write_bytes(b"content")
    made = session.checkpoint()
    (tmp_path / "copy").mkdir()
    entries = [(1, 7, -1), (2, 7, 1), (4, 5, -1), (0x10, 7, -1), (0x20, 5, -1)]
    listed = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(tmp_path / "copy", "system.posix_acl_default", listed)
    except OSError:
        pytest.skip("this filesystem has no access lists")
    assert session.files.copy(made, tmp_path / "copy") == []
    assert picture(tmp_path / "copy") == picture(work)
    for path in ("", "src", "src/file"):
        assert os.listxattr(tmp_path / "copy" / path) == []


def test_a_damaged_object_costs_the_files_that_have_it_and_no_other(
    store: Store, session: Session, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c", "also b"):
        (work / name).write_bytes(name[-1:].encode() * 100)
    made = session.checkpoint()
    objects = store._engine.objects
    bad = codec.digest(2, b"b" * 100)
    real_get, real_all = objects.get, objects.get_all

    def get_all(kind: int, digests: Iterable[Digest]) -> Iterator[tuple[Digest, bytes]]:
        return (found for found in real_all(kind, digests) if found[0] != bad)

    def get(kind: int, digest: Digest) -> bytes:
        if digest == bad:
            raise DamagedObject("It is damaged.")
        return real_get(kind, digest)

    monkeypatch.setattr(objects, "get", get)
    monkeypatch.setattr(objects, "get_all", get_all)
    problems = session.files.copy(made, tmp_path / "copy")
    assert {problem.where: problem.detail for problem in problems} == {
        "b": "It is damaged.",
        "also b": "It is damaged.",
    }
    assert sorted(os.listdir(tmp_path / "copy")) == ["a", "c"]


def test_what_appears_in_the_directory_meanwhile_is_kept(work: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    todo = [b"mine"]

    def failpoint(point: Failpoint) -> None:
        if point is Failpoint.RESTORE_TEMPORARY_WRITTEN and todo:
            (copy / "z").write_bytes(todo.pop())

    (work / "a").write_bytes(b"a")
    (work / "z").write_bytes(b"z")
    with open_store(tmp_path / "store", failpoint=failpoint) as store:
        session = store.session("run", workspace=work)
        problems = session.files.copy(session.checkpoint(), copy)
    assert [problem.where for problem in problems] == ["z"]
    assert (copy / "z").read_bytes() == b"mine"


def test_a_forks_files_are_durable_before_the_fork_is_known(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    real = syscalls.sync_filesystem

    def sync(handle: int) -> None:
        [draft] = tmp_path.glob(".mulligan.new-fork-*")
        assert os.fstat(handle).st_dev == os.stat(draft).st_dev
        there = picture(draft)
        assert there.pop(b"").kind == "directory"
        assert there == {path: seen for path, seen in picture(work).items() if path}
        real(handle)
        happened.append("synced")

    for number in range(MAX_FILES_SYNCED_ONE_BY_ONE):
        (work / str(number)).write_bytes(b"content %d" % number)
    monkeypatch.setattr(syscalls, "sync_filesystem", sync)
    with open_store(tmp_path / "store", failpoint=happened.append) as store:
        session = store.session("run", workspace=work)
        made = session.checkpoint()
        happened.clear()
        session.fork(made, name="fork", workspace=tmp_path / "fork")
    last = len(happened) - 1 - happened[::-1].index(Failpoint.RESTORE_TEMPORARY_WRITTEN)
    assert last < happened.index("synced") < happened.index(Failpoint.JOURNAL_BEFORE_COMMIT)


@pytest.mark.parametrize("count", [1, MAX_FILES_SYNCED_ONE_BY_ONE])
def test_no_session_is_made_when_its_files_cannot_be_made_durable(
    session: Session,
    store: Store,
    work: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
) -> None:
    real = os.fsync

    def sync(handle: int) -> None:
        if "/.mulligan/" in os.readlink(f"/proc/self/fd/{handle}"):
            real(handle)
        else:
            raise OSError(5, "Input/output error")

    for number in range(count):
        (work / str(number)).write_bytes(b"content")
    made = session.checkpoint()
    monkeypatch.setattr(syscalls, "sync_filesystem", sync)
    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(RestoreIncomplete, match="Input/output"):
        session.fork(made, name="fork", workspace=tmp_path / "fork")
    assert [opened.name for opened in store.sessions()] == ["run"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "work"]


def test_a_directory_that_was_there_keeps_its_mode(
    session: Session, work: Path, tmp_path: Path
) -> None:
    """Somebody has chosen it; what it becomes must not be open to more than that."""
    (work / "file").write_bytes(b"secret")
    work.chmod(0o777)
    made = session.checkpoint()
    for name in ("copy", "fork"):
        (tmp_path / name).mkdir(mode=0o700)
    assert session.files.copy(made, tmp_path / "copy") == []
    session.fork(made, workspace=tmp_path / "fork")
    assert session.files.copy(made, tmp_path / "new") == []
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("copy", "fork", "new")]
    assert modes == [0o700, 0o700, 0o777]


def test_places_that_are_refused_stay_as_they_are(
    session: Session, store: Store, work: Path, tmp_path: Path
) -> None:
    (work / "file").write_bytes(b"content")
    made = session.checkpoint()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "taken").write_bytes(b"")
    inside = Path(store.path) / "x"
    for place in ("dangling", "taken", "store/.mulligan/x", "sub/../store/.mulligan/x"):
        with pytest.raises(UnsafeWorkspace):
            session.files.copy(made, tmp_path / place)
    assert not inside.exists()
    assert not (tmp_path / "sub").exists()
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_that_may_not_be_written_to_is_one_error() -> None:
    with place_of_nobody() as place:

        def body() -> None:
            (place / "work").mkdir()
            (place / "work" / "file").write_bytes(b"content")
            (place / "copy").mkdir(mode=0o555)
            with mulligan.open(place / "store") as store:
                session = store.session("run", workspace=place / "work")
                made = session.checkpoint()
                with pytest.raises(UnsafeWorkspace, match="cannot be written to"):
                    session.files.copy(made, place / "copy")
            assert (place / "copy").stat().st_mode & 0o777 == 0o555

        as_nobody(body)


def test_no_room_even_for_the_directory(session: Session, work: Path, tmp_path: Path) -> None:
    (work / "file").write_bytes(b"content")
    made = session.checkpoint()
    with disk_of(1, tmp_path / "disk") as disk:
        with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        with pytest.raises(DiskFull) as caught:
            session.files.copy(made, disk / "a" / "copy")
        assert "Delete it" in (caught.value.hint or "")
