"""Deleting checkpoints by hand: what nothing needs goes, with its files; the rest is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mulligan import Session, Store
from mulligan.errors import CheckpointNeeded, CheckpointPruned, UnknownPoint
from mulligan.model import Checkpoint
from mulligan.store import engine_of
from mulligan.testing.stores import open_store
from mulligan.timeline.lost_objects import LostInTrees
from mulligan.timeline.points import PointLike
from mulligan.upkeep import PurgeTarget, delete_checkpoints, plan_purge
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.space.reclaim_space import reclaim
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
    session.checkpoints.pin("step 1")
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
    session.checkpoints.unpin("step 1")
    delete_checkpoints(store, session, ["step 1"])
    assert store.verify().problems == ()


def test_what_a_fork_has_too_stays(store: Store) -> None:
    session = store.session("run")
    first, second, third = [session.checkpoint() for _ in range(3)]
    fork = session.fork(third, "fork")
    inner = fork.fork(second, "inner")
    store.delete("fork")
    with pytest.raises(CheckpointNeeded, match="the fork 'inner' has it, too"):
        delete_checkpoints(store, session, [first])
    with pytest.raises(CheckpointNeeded, match="the fork 'inner' has it, too"):
        delete_checkpoints(store, inner, [first])
    assert inner.checkpoints() == [first, second]
    store.delete("inner")
    delete_checkpoints(store, session, [first])
    assert session.checkpoints() == [second, third]


def test_the_refusal_names_the_fork_and_then_what_is_left_of_it(store: Store) -> None:
    session = store.session("run")
    first, second, third = [session.checkpoint() for _ in range(3)]
    session.fork(second, "fork")
    with pytest.raises(CheckpointNeeded, match="it is the newest one of session 'run'"):
        delete_checkpoints(store, session, [third])
    for point in (first, second):
        with pytest.raises(CheckpointNeeded, match="the fork 'fork' has it, too") as refused:
            delete_checkpoints(store, session, [point])
        assert "`mulligan delete fork`" in (refused.value.hint or "")
    store.delete("fork")
    with pytest.raises(CheckpointNeeded, match="a session that was deleted began") as refused:
        delete_checkpoints(store, session, [second])
    assert "`mulligan prune`" in (refused.value.hint or "")
    collect(store)
    delete_checkpoints(store, session, [second])
    assert session.checkpoints() == [first, third]


def test_a_prune_is_not_advised_where_it_would_not_help(store: Store) -> None:
    session = store.session("run")
    newest = session.checkpoint()
    session.fork(newest, "fork")
    store.delete("fork")
    with pytest.raises(CheckpointNeeded, match="newest one of session 'run'") as refused:
        delete_checkpoints(store, session, [newest])
    assert "prune" not in (refused.value.hint or "")


def test_what_only_a_deleted_fork_had_too_is_deleted(store: Store) -> None:
    """Its own fork, from an earlier point, has less of the timeline."""
    session = store.session("run")
    first, second, third, fourth = [session.checkpoint() for _ in range(4)]
    fork = session.fork(third, "fork")
    fork.fork(first.id, "inner")
    store.delete("fork")
    with pytest.raises(CheckpointNeeded):
        delete_checkpoints(store, session, [first])
    delete_checkpoints(store, session, [second])
    assert session.checkpoints() == [first, third, fourth]
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


def test_files_that_only_a_deleted_base_tree_has_are_gone(store: Store, work: Path) -> None:
    """Later checkpoints are stored as patches to the tree of the first, deep in it as well."""
    session = store.session("based", workspace=work)
    (work / "deep" / "er").mkdir(parents=True)
    for number in range(200):  # a directory of several objects
        (work / "deep" / f"plain {number}").write_text(str(number))
    removed, replaced = work / "deep" / "er" / "removed", work / "deep" / "replaced"
    removed.write_text(TEXTS[0] * 50)
    replaced.write_text(TEXTS[1] * 50)
    (work / "kept").write_text(TEXTS[2] * 50)
    first = session.checkpoint()
    removed.unlink()
    replaced.write_text("second")
    second = session.checkpoint()
    replaced.write_text("third")
    (work / "kept").unlink()
    third = session.checkpoint()
    place = Path(store.path or "")
    delete_checkpoints(store, session, [first])
    collect(store)
    assert store.verify(full=True).problems == ()
    # It counts as nothing that is lost or that could be purged, though the base names it.
    lost = LostInTrees(engine_of(store))
    assert all(not lost.lost_in(one.workspace) for one in (second, third) if one.workspace)
    assert lost.missing == set()
    assert not plan_purge(store, PurgeTarget(paths=("deep/er/removed",)))
    assert not plan_purge(store, PurgeTarget(match=TEXTS[0]))
    # The second one still has the last of them.
    assert [bool(files_with(place, text.encode())) for text in TEXTS[:3]] == [False, False, True]
    for point, content in ((second, "second"), (third, "third")):
        session.restore(point)
        assert replaced.read_text() == content
        assert (work / "kept").exists() == (point is second)
        assert (work / "deep" / "plain 150").read_text() == "150"


def test_a_file_of_a_deleted_base_tree_that_comes_back_is_stored_again(
    store: Store, work: Path
) -> None:
    session = store.session("based", workspace=work)
    (work / "file").write_text(TEXTS[0])
    times = (work / "file").stat()
    first = session.checkpoint()
    (work / "file").write_text(TEXTS[1])
    session.checkpoint()
    delete_checkpoints(store, session, [first])
    collect(store)
    (work / "file").write_text(TEXTS[0])
    os.utime(work / "file", ns=(times.st_atime_ns, times.st_mtime_ns))
    os.utime(work, ns=(times.st_atime_ns, times.st_mtime_ns))
    again = session.checkpoint()
    (work / "file").write_text(TEXTS[2])
    session.checkpoint()
    assert store.verify(full=True).problems == ()
    session.restore(again)
    assert (work / "file").read_text() == TEXTS[0]


def test_a_session_patches_the_base_tree_of_another_and_outlives_it(
    store: Store, work: Path
) -> None:
    one, two = (store.session(name, workspace=work) for name in ("one", "two"))
    (work / "kept").write_text(TEXTS[1])
    (work / "secret").write_text(TEXTS[0] * 50)
    one.checkpoint()
    (work / "secret").unlink()
    taken = two.checkpoint()
    store.delete("one")
    collect(store)
    assert files_with(Path(store.path or ""), TEXTS[0].encode()) == []
    assert store.verify(full=True).problems == ()
    (work / "kept").unlink()
    two.restore(taken)
    assert (work / "kept").read_text() == TEXTS[1]
