"""Deleting checkpoints by hand: what nothing needs goes, with its files; the rest is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mulligan import Session, Store
from mulligan.errors import CheckpointNeeded, CheckpointPruned, UnknownPoint
from mulligan.model import Checkpoint
from mulligan.store import engine_of
from mulligan.testing.stores import open_store
from mulligan.timeline.points import PointLike
from mulligan.upkeep import delete_checkpoints
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.space import reclaim
from mulligan.workspace.capture.edits import MAX_PATCH_ENTRIES
from tests.raw_bytes import files_with

TEXTS = [f"content-{number}-Zq8vKx03LmPw7RtY" for number in range(4)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def session(store: Store, work: Path) -> Session:
    """Four checkpoints, each with files and a state of its own."""
    session = store.session("run", workspace=work)
    for number, text in enumerate(TEXTS):
        (work / "file").write_text(text * 50)
        session.state.set("step", number)
        session.checkpoint(label=f"step {number}", key=f"key {number}")
    return session


def collect(store: Store) -> None:
    engine = engine_of(store)
    with upkeep_lock(engine, wait=False):
        assert reclaim(engine).skipped == ()


def test_a_deleted_checkpoint_is_gone_with_its_files(
    store: Store, session: Session, work: Path
) -> None:
    first, second, third, _ = session.checkpoints()
    done = delete_checkpoints(store, session, ["step 1", third])
    assert [one.id for one in done] == [second.id, third.id]
    assert [one.label for one in session.checkpoints()] == ["step 0", "step 3"]
    assert session.checkpoints.find("key 1") is None
    with pytest.raises(CheckpointPruned):
        session.point(second.id)
    assert session.state.at(second.seq).get("step") == 1
    collect(store)
    place = Path(store.path or "")
    assert [bool(files_with(place, text.encode())) for text in TEXTS] == [True, False, False, True]
    assert store.verify().problems == ()
    session.restore(first)
    assert (work / "file").read_text() == TEXTS[0] * 50
    session.checkpoint(key="key 1")


def test_what_is_needed_is_refused_and_nothing_is_deleted(store: Store, session: Session) -> None:
    session.fork("step 0", "fork").checkpoint()
    session.internal.pin("step 1")
    session.restore("step 2")
    safety = session.checkpoints()[-1]
    session.checkpoint()
    before = session.checkpoints()
    for point, why in (
        ("@latest", "newest"),
        ("step 0", "fork"),
        ("step 1", "pinned"),
        (safety, "undo"),
    ):
        with pytest.raises(CheckpointNeeded, match=why):
            delete_checkpoints(store, session, ["step 3", point])
    assert session.checkpoints() == before
    session.internal.unpin("step 1")
    delete_checkpoints(store, session, ["step 1"])
    assert store.verify().problems == ()


def test_a_point_that_is_no_checkpoint_is_refused(store: Store, session: Session) -> None:
    session.state.set("a", 1)
    with pytest.raises(UnknownPoint, match="not a checkpoint"):
        delete_checkpoints(store, session, ["step 0", session.head.seq])
    assert len(session.checkpoints()) == 4
    assert delete_checkpoints(store, session, []) == []


def test_in_memory(work: Path) -> None:
    with open_store("memory:") as store:
        session = store.session("run")
        for _ in range(3):
            session.checkpoint()
        delete_checkpoints(store, session, ["@latest~1"])
        assert len(session.checkpoints()) == 2


def test_one_that_another_process_has_deleted_meanwhile_is_deleted(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = session.checkpoints()[1]
    find = session.checkpoints.at

    def found(point: PointLike) -> Checkpoint:
        monkeypatch.undo()
        checkpoint = find(point)
        delete_checkpoints(store, session, [point])  # between the look-up and the lock
        return checkpoint

    monkeypatch.setattr(session.checkpoints, "at", found)
    assert [one.id for one in delete_checkpoints(store, session, [second])] == [second.id]
    assert len(session.checkpoints()) == 3


def test_files_of_a_base_tree_go_with_the_last_patch_to_it(store: Store, work: Path) -> None:
    session = store.session("based", workspace=work)
    for number in range(MAX_PATCH_ENTRIES + 1):
        (work / f"plain {number}").write_text(str(number))
    (work / "secret").write_text(TEXTS[0] * 50)
    first = session.checkpoint()
    (work / "secret").unlink()
    patched = session.checkpoint()
    place = Path(store.path or "")
    delete_checkpoints(store, session, [first])
    collect(store)
    assert files_with(place, TEXTS[0].encode())
    # Enough changes that a whole tree is stored again.
    for number in range(MAX_PATCH_ENTRIES + 1):
        (work / f"plain {number}").write_text(f"again {number}")
    session.checkpoint()
    delete_checkpoints(store, session, [patched])
    collect(store)
    assert store.verify().problems == ()
    assert files_with(place, TEXTS[0].encode()) == []
