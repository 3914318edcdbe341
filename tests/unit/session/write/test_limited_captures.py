"""A capture that would fill the disk, or exceed the quota, leaves the files out and says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mulligan import Session, Store
from mulligan.model import WHOLE_WORKSPACE
from mulligan.storage_limit import RESERVE, Allowance, StorageLimit
from mulligan.store import engine_of


def limit(store: Store, room: int) -> None:
    """Let the store grow by so many bytes."""
    storage = engine_of(store).storage
    storage.quota = storage.size() + room


def test_a_quota_smaller_than_one_checkpoint(store: Store, session: Session, work: Path) -> None:
    (work / "large").write_bytes(os.urandom(3_000_000))
    limit(store, 100_000)
    session.state.set("memory/plan", "go on")
    taken = session.checkpoint("routine", note="step 1")
    assert taken.workspace is None
    assert taken.coverage is not None
    assert "quota" in (taken.coverage.refused or "")
    assert [left.path for left in taken.coverage.left_out] == [WHOLE_WORKSPACE]
    assert taken.coverage.root == str(work)
    assert taken.note is not None
    assert taken.note.startswith("step 1 (without files: the store has reached its quota")
    assert session.state.at(taken).get("memory/plan") == "go on"
    assert store.verify().problems == ()


def test_files_come_back_with_the_room(store: Store, session: Session, work: Path) -> None:
    (work / "large").write_bytes(os.urandom(3_000_000))
    limit(store, 100_000)
    assert session.checkpoint().workspace is None
    limit(store, 20_000_000)
    taken = session.checkpoint()
    assert taken.workspace is not None
    assert taken.note is None
    (work / "large").unlink()
    session.restore(taken)
    assert (work / "large").stat().st_size == 3_000_000


def test_the_store_stays_within_its_quota(store: Store, session: Session, work: Path) -> None:
    engine = engine_of(store)
    engine.upkeep = None
    limit(store, 4_000_000)
    quota = engine.storage.quota
    assert quota is not None
    held = []
    for number in range(12):
        (work / f"{number}").write_bytes(os.urandom(1_000_000))
        held.append(session.checkpoint("routine").workspace is not None)
    assert held[0]
    assert not held[-1]
    # The journal may go on: events are small, and recording never stops.
    assert engine.storage.size() < quota + 300_000
    assert store.verify().problems == ()


def test_content_that_is_stored_already_needs_no_room(
    store: Store, session: Session, work: Path
) -> None:
    content = os.urandom(2_000_000)
    (work / "one").write_bytes(content)
    session.checkpoint()
    limit(store, 3_000_000)
    for name in ("two", "three", "four"):
        (work / name).write_bytes(content)
    assert session.checkpoint().workspace is not None


def test_a_capture_that_did_not_fit_is_not_tried_again(
    store: Store, session: Session, work: Path
) -> None:
    """Each attempt would read all files, and leave what it wrote behind."""
    engine_of(store).upkeep = None
    (work / "large").write_bytes(os.urandom(3_000_000))
    limit(store, 1_000_000)
    assert session.checkpoint().workspace is None
    size = engine_of(store).storage.size()
    for _ in range(5):
        assert session.checkpoint().workspace is None
    assert engine_of(store).storage.size() < size + 200_000


def test_a_disk_that_is_nearly_full(
    store: Store, session: Session, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "file").write_text("content")
    full = Allowance(-1, RESERVE, "the disk of the store would have less than 1 GB free")
    monkeypatch.setattr(StorageLimit, "allowance", lambda _: full)
    taken = session.checkpoint()
    assert taken.workspace is None
    assert taken.coverage is not None
    assert taken.coverage.refused == full.reason


def test_a_restore_is_not_refused(store: Store, session: Session, work: Path) -> None:
    """What it takes first is small, and a recovery must not fail for want of a quota."""
    (work / "file").write_text("before")
    first = session.checkpoint()
    (work / "file").write_text("after")
    limit(store, 0)
    restored = session.restore(first)
    assert restored.safety.workspace is not None
    assert (work / "file").read_text() == "before"
    session.undo()
    assert (work / "file").read_text() == "after"


def test_room_is_made_before_files_are_left_out(store: Store, session: Session, work: Path) -> None:
    asked = []

    class Upkeep:
        def make_room(self) -> None:
            asked.append(True)
            limit(store, 20_000_000)

        def work_done(self) -> None:
            asked.append(False)

        def maintain(self, budget_seconds: float) -> None:
            raise AssertionError

        def close(self) -> None:
            pass

    engine_of(store).upkeep = Upkeep()
    (work / "large").write_bytes(os.urandom(1_000_000))
    limit(store, -1)
    assert session.checkpoint().workspace is not None
    assert asked == [True, False]
