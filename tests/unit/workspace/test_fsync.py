"""What is synced with its filesystem as a whole, and what by itself."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from mulligan.workspace import fsync, syscalls
from mulligan.workspace.fsync import Syncer, few, make_directories, many, sync_names
from mulligan.workspace.handles import room_for

EXT4, BTRFS, FUSE, NFS, OVERLAY = 0xEF53, 0x9123683E, 0x65735546, 0x6969, 0x794C7630


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are synced, and ``whole`` for a filesystem; nothing really is."""
    found: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda h: found.append(os.readlink(f"/proc/self/fd/{h}")))
    monkeypatch.setattr(syscalls, "sync_filesystem", lambda _: found.append("whole"))
    return found


def on(monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    monkeypatch.setattr(syscalls, "filesystem_type", lambda _: kind)


def sync(place: Path, count: int, syncs_filesystem: fsync.SyncsFilesystem) -> list[str]:
    """Write and sync so many files and their directory; return their paths."""
    failures: list[object] = []
    syncer: Syncer[str] = Syncer(lambda *failed: failures.append(failed), syncs_filesystem)
    paths = [str(place / str(number)) for number in range(count)]
    for path in [*paths, str(place)]:
        if path != str(place):
            Path(path).write_bytes(b"content")
        handle = os.open(path, os.O_RDONLY)
        syncer.add(path, handle)
        os.close(handle)
    syncer.finish()
    syncer.close()
    assert failures == []
    return [*paths, str(place)]


@pytest.mark.parametrize("kind", [FUSE, NFS, OVERLAY, 0])
@pytest.mark.parametrize("syncs_filesystem", [few, many])
def test_a_filesystem_that_is_not_known_to_sync_as_a_whole_is_synced_file_by_file(
    tmp_path: Path,
    synced: list[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: int,
    syncs_filesystem: fsync.SyncsFilesystem,
) -> None:
    on(monkeypatch, kind)
    assert sorted(sync(tmp_path, 300, syncs_filesystem)) == sorted(synced)


def test_an_early_linux_does_not_say_whether_it_succeeded(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, EXT4)
    system = os.uname()
    for release, whole in (("5.7.19-amd64", False), ("5.8.0", True), ("6.1", True)):
        known = os.uname_result((system.sysname, "host", release, "", ""))
        with monkeypatch.context() as patched:
            patched.setattr(os, "uname", lambda known=known: known)
            sync(tmp_path, 1, many)
        assert ("whole" in synced) is whole
        synced.clear()


def test_many_files_are_synced_at_once_where_that_can_be_relied_on(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, EXT4)
    sync(tmp_path, 70, many)
    assert synced == ["whole"]
    synced.clear()
    assert sorted(sync(tmp_path, 3, few)) == sorted(synced)


def test_btrfs_writes_no_log_of_single_files(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, BTRFS)
    sync(tmp_path, 3, few)
    assert synced == ["whole"]


def test_a_directory_is_synced_after_what_is_in_it(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, FUSE)
    monkeypatch.setattr(fsync, "SYNC_THREADS", 1)
    sync(tmp_path, 3, many)
    assert synced[-1] == str(tmp_path)


def test_what_cannot_be_synced_is_told_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").endswith("1"):
            raise OSError(5, "Input/output error")

    on(monkeypatch, FUSE)
    monkeypatch.setattr(os, "fsync", fail)
    failures = []
    syncer: Syncer[str] = Syncer(lambda *failed: failures.append(failed), many)
    for name in ("0", "1", "2"):
        handle = os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT)
        syncer.add(name, handle)
        os.close(handle)
    syncer.finish()
    syncer.close()
    assert [(name, error.errno) for name, error in failures] == [("1", 5)]


@pytest.fixture
def low_limit() -> Iterator[int]:
    """Leave this process an eighth of its limit and a few files more, whatever it has open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    limit = max(64, (highest + 10) * 8 // 7 + 8)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_low_limit_of_open_files_is_kept(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch, low_limit: int
) -> None:
    on(monkeypatch, FUSE)
    assert room_for(low_limit) == low_limit // 8
    assert sorted(sync(tmp_path, low_limit, many)) == sorted(synced)


def test_directories_are_made_and_their_names_synced(tmp_path: Path, synced: list[str]) -> None:
    made = make_directories(tmp_path / "a" / "b" / "c")
    assert made == [tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"]
    sync_names(made)
    assert synced == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]
    assert make_directories(tmp_path / "a" / "b") == []
