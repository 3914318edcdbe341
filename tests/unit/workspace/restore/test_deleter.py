"""Files are deleted one by one or several at a time, and all of them before it counts."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from mulligan.workspace.fsync import sync_all
from mulligan.workspace.restore.deleter import Deleter

NEVER = float("inf")


@pytest.fixture
def parent(tmp_path: Path) -> int:
    for number in range(300):
        (tmp_path / str(number)).write_bytes(b"content")
    return os.open(tmp_path, os.O_RDONLY)


@pytest.mark.parametrize("patience", [NEVER, -1.0], ids=["alone", "with others"])
def test_all_is_deleted_when_it_is_settled(tmp_path: Path, parent: int, patience: float) -> None:
    failures: list[tuple[int, OSError]] = []
    before = len(os.listdir("/proc/self/fd"))
    remover: Deleter[int] = Deleter(lambda *failed: failures.append(failed), patience=patience)
    for number in range(300):
        remover.unlink(number, parent, b"%d" % number)
    remover.settle()
    assert list(tmp_path.iterdir()) == []
    assert failures == []
    remover.close()
    remover.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_others_help_once_deleting_is_slow(
    tmp_path: Path, parent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    by: list[int] = []
    real, ticks = os.unlink, iter(range(10_000))

    def unlink(*arguments: object, **named: object) -> None:
        by.append(threading.get_ident())
        real(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "unlink", unlink)
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    remover: Deleter[int] = Deleter(lambda *_: None, patience=1.5)
    for number in range(300):
        remover.unlink(number, parent, b"%d" % number)
    remover.settle()
    remover.close()
    assert by[:2] == [threading.get_ident()] * 2
    assert threading.get_ident() not in by[2:]
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_deleted_is_told_by_its_key(tmp_path: Path, parent: int) -> None:
    failures: list[tuple[int, OSError]] = []
    remover: Deleter[int] = Deleter(lambda *failed: failures.append(failed), patience=-1.0)
    (tmp_path / "directory").mkdir()
    for number, name in enumerate((b"1", b"directory", b"2", b"missing")):
        remover.unlink(number, parent, name)
    remover.settle()
    remover.close()
    assert sorted(key for key, _ in failures) == [1, 3]
    with pytest.raises(IsADirectoryError):
        Deleter(lambda *_: None, patience=NEVER).unlink(0, parent, b"directory")


def test_all_is_deleted_and_synced_where_no_thread_can_be_started(
    tmp_path: Path, parent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    remover: Deleter[int] = Deleter(lambda *_: None, patience=-1.0)
    for number in range(300):
        remover.unlink(number, parent, b"%d" % number)
    remover.settle()
    remover.close()
    assert list(tmp_path.iterdir()) == []
    assert sync_all([parent]) == {}
