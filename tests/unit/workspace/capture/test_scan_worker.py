"""Lookouts: whatever they say or fail to say, a scan finds what it would find by itself."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mulligan.objects.memory import MemoryObjects
from mulligan.workspace import workers
from mulligan.workspace.capture import scan_worker
from mulligan.workspace.capture.capture import Capture, CaptureLimits
from mulligan.workspace.capture.ignore import Rules
from mulligan.workspace.capture.index import Index
from mulligan.workspace.capture.scan import Changes, Scan
from mulligan.workspace.capture.scan_worker import ScanWorker

Change = Callable[[Path], object]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace of which everything is known, and long ago."""
    made = tmp_path / "root"
    for number in range(12):
        place = made / f"a{number % 3}" / f"b{number}"
        (place / "empty").mkdir(parents=True)
        for name in ("one", "two", "three"):
            (place / name).write_text(f"{number} {name}")
        (place / "link").symlink_to("one")
    return made


@pytest.fixture
def index(root: Path) -> Index:
    rules = Rules.read(root)
    bundle = MemoryObjects().bundle()
    changes = Scan(os.fsencode(root), None, rules).everything()
    captured = Capture(root, bundle, None, CaptureLimits()).run(changes, rules, time.time_ns())
    captured.index.taken += 10**10
    return captured.index


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ScanWorker]:
    """Have two scan workers for the smallest of workspaces, and return all that were started."""
    found: list[ScanWorker] = []

    class Noted(ScanWorker):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            found.append(self)

    monkeypatch.setattr(scan_worker, "ScanWorker", Noted)
    monkeypatch.setattr(scan_worker, "MIN_PATHS_PER_WORKER", 1)
    monkeypatch.setattr(scan_worker, "WORKER_START_PATHS", 0)
    monkeypatch.setattr(workers, "processors", lambda: 3)
    return found


def scanned(root: Path, index: Index) -> Changes:
    return Scan(os.fsencode(root), index, Rules.read(root)).everything()


def alone(root: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> Changes:
    with monkeypatch.context() as patch:
        patch.setattr(workers, "processors", lambda: 1)
        return scanned(root, index)


def comparable(changes: Changes) -> tuple[object, ...]:
    return (
        sorted(changes.leaves),
        sorted(changes.directories),
        sorted(changes.gone),
        changes.linked,
    )


def append(path: Path) -> None:
    with path.open("a") as file:
        file.write("more")


def same_size_and_time(path: Path) -> None:
    before = os.lstat(path)
    path.write_bytes(b"x" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def swap_for_symlink(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


CHANGES: dict[str, Change] = {
    "nothing": lambda root: None,
    "a file edited": lambda root: append(root / "a2/b11/one"),
    "the same size and time": lambda root: same_size_and_time(root / "a1/b10/two"),
    "a mode": lambda root: (root / "a0/b9/three").chmod(0o600),
    "a file added": lambda root: (root / "a2/b8/new").write_text("new"),
    "a file removed": lambda root: (root / "a2/b8/one").unlink(),
    "a file replaced": lambda root: (root / "a2/b8/one").rename(root / "a2/b8/two"),
    "a directory added": lambda root: (root / "a2/b11/empty/inner").mkdir(),
    "a directory removed": lambda root: shutil.rmtree(root / "a2"),
    "a directory moved": lambda root: (root / "a2").rename(root / "a0/b0/a2"),
    "a directory swapped for a symlink to it": lambda root: swap_for_symlink(root / "a1"),
    "a file instead of a directory": lambda root: (
        shutil.rmtree(root / "a2/b11/empty"),
        (root / "a2/b11/empty").write_text("a file"),
    ),
    "another name": lambda root: os.link(root / "a2/b11/one", root / "a2/b8/again"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_scan_with_scan_workers_finds_what_a_scan_finds(
    root: Path,
    index: Index,
    started: list[ScanWorker],
    monkeypatch: pytest.MonkeyPatch,
    change: Change,
) -> None:
    change(root)
    found = scanned(root, index)
    assert len(started) == 2
    assert all(one.paths for one in started)
    assert comparable(found) == comparable(alone(root, index, monkeypatch))


def test_nothing_is_looked_at_twice_when_nothing_changed(
    root: Path, index: Index, started: list[ScanWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[bytes] = []
    real = Scan._directory
    monkeypatch.setattr(Scan, "_directory", lambda scan, p: looked.append(p) or real(scan, p))
    scanned(root, index)
    asked = [path for one in started for path in one.paths]
    assert sorted(asked + looked) == sorted(index.directories)


def test_files_with_other_names_are_named_by_the_scan_workers(
    root: Path, index: Index, started: list[ScanWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.link(root / "a2/b11/one", root.with_name("outside"))
    rules = Rules.read(root)
    changes = Scan(os.fsencode(root), index, rules).everything()
    capture = Capture(root, MemoryObjects().bundle(), index, CaptureLimits())
    index = capture.run(changes, rules, time.time_ns() + 10**10).index
    found = scanned(root, index)
    assert found.leaves == []
    assert list(found.linked) == [b"a2/b11/one"]
    assert comparable(found) == comparable(alone(root, index, monkeypatch))


def test_what_may_have_changed_unseen_is_read_again(
    root: Path, index: Index, started: list[ScanWorker]
) -> None:
    index.taken = os.lstat(root / "a0/b0/one").st_ctime_ns
    leaves = sum(len(directory.leaves) for directory in index.directories.values())
    assert len(scanned(root, index).leaves) == leaves


PROGRAMS = {
    "fails": "raise SystemExit(1)",
    "is killed": "import os; os.kill(os.getpid(), 9)",
    "says nothing": "",
    "is cut short": "import os; os.write(1, b'\\1')",
    "answers and fails": "import os; os.write(1, b'\\1' * 1000); os._exit(3)",
    **{
        f"says {more} bytes too much": f"import os; os.write(1, b'\\1' * {1_000 + more})"
        for more in range(8)
    },
    "is not to be read": None,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_scan_worker_that_goes_wrong_is_done_without(
    root: Path,
    index: Index,
    started: list[ScanWorker],
    monkeypatch: pytest.MonkeyPatch,
    program: str | None,
) -> None:
    file = root.with_name("program.py")
    if program is not None:
        file.write_text(program)
    monkeypatch.setattr(scan_worker, "_PROGRAM", file)
    append(root / "a2/b11/one")
    assert scanned(root, index).leaves == [b"a2/b11/one"]
    assert len(started) == 2


def test_a_scan_worker_that_ended_before_it_was_told_anything_ends_nobody_else(
    root: Path, index: Index, started: list[ScanWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = root.with_name("program.py")
    file.write_text("")
    monkeypatch.setattr(scan_worker, "_PROGRAM", file)
    real = ScanWorker.send

    def late(self: ScanWorker, *arguments: Any) -> None:
        self._process.wait(60)
        real(self, *arguments)

    monkeypatch.setattr(ScanWorker, "send", late)
    signals: list[int] = []
    before = signal.signal(signal.SIGPIPE, lambda number, _: signals.append(number))
    try:
        append(root / "a2/b11/one")
        assert scanned(root, index).leaves == [b"a2/b11/one"]
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert len(started) == 2
    assert signals == []


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="nobody says what is open")
def test_nothing_stays_open_after_a_scan(
    root: Path, index: Index, started: list[ScanWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.listdir("/proc/self/fd")
    scanned(root, index)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/no/such/python3")
        scanned(root, index)
    assert len(started) == 2
    assert os.listdir("/proc/self/fd") == before


def test_without_room_for_what_they_are_told_the_scan_looks_by_itself(
    root: Path, index: Index, started: list[ScanWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ScanWorker, "end", full)
    append(root / "a2/b11/one")
    assert scanned(root, index).leaves == [b"a2/b11/one"]
    assert len(started) == 2
    assert all(one._process.returncode is not None for one in started)


@pytest.mark.parametrize("executable", ["/usr/bin/uwsgi", "/opt/app", "", None, "/no/such/python3"])
def test_without_an_interpreter_the_scan_looks_by_itself(
    root: Path,
    index: Index,
    started: list[ScanWorker],
    monkeypatch: pytest.MonkeyPatch,
    executable: str | None,
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    append(root / "a2/b11/one")
    assert scanned(root, index).leaves == [b"a2/b11/one"]
    assert started == []


def test_a_scan_that_is_interrupted_leaves_no_scan_worker_behind(
    root: Path, index: Index, started: list[ScanWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Scan, "_below", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scanned(root, index)
    assert len(started) == 2
    assert all(one._process.returncode is not None for one in started)


def test_a_small_workspace_has_no_scan_workers(
    root: Path, index: Index, started: list[ScanWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_worker, "MIN_PATHS_PER_WORKER", 10_000)
    scanned(root, index)
    assert started == []
