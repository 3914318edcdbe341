"""Deleting and copying sessions: forks stay whole, and what is erased is gone from the files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import chain, repeat
from pathlib import Path

import pytest

import mulligan
from mulligan import Point, Session, Store, aio
from mulligan.errors import (
    KeyTaken,
    LeaseHeld,
    RestorePending,
    SessionExists,
    UnknownPoint,
    UnknownSession,
)
from mulligan.store import engine_of
from mulligan.testing.stores import open_store
from mulligan.upkeep import PurgeTarget, run_purge
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.retention.policy import Policy, Rules
from mulligan.upkeep.retention.prune import Pruner
from mulligan.upkeep.space.deleted import SLICE_EVENTS
from mulligan.upkeep.space.fold import fold_session
from mulligan.upkeep.space.reclaim_space import Reclaimed, reclaim
from tests.raw_bytes import files_with
from tests.unit.recovery.dead import dead

STATE, FILE, LARGE = "Zq8vKx03LmPw7RtY", "Hh4Tn9wQe2Xy6Vb1", "Bb7Rr2Kk5Jj9Dd3M" * 600


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(place: Path) -> Iterator[Store]:
    with open_store(place) as opened:
        yield opened


def collected(store: Store) -> Reclaimed:
    engine = engine_of(store)
    with upkeep_lock(engine, wait=False):
        return reclaim(engine)


def filled(store: Store, work: Path, name: str = "doomed", **options: str) -> Session:
    """A session with secrets in its state, its files, a note, a label and its checkpoints."""
    session = store.session(name, workspace=work, **options)
    session.state.set("memory/secret", STATE)
    session.state.set("memory/large", LARGE)
    (work / "file").write_text(FILE * 3)
    session.checkpoint(note=f"note {STATE}", label="first", key="one")
    (work / "file").write_text("shared with others")
    session.checkpoint()
    return session


def left(store: Store) -> list[str]:
    assert store.path is not None
    return [
        found
        for text in (STATE, FILE, LARGE[:16])
        for found in files_with(Path(store.path), text.encode())
    ]


def test_a_deleted_session_is_gone_for_programs(store: Store, work: Path) -> None:
    session = filled(store, work, key="from elsewhere")
    taken = session.checkpoints()[0]
    identity = taken.id
    store.delete("doomed")
    assert store.sessions() == []
    assert store.find("from elsewhere") is None
    with pytest.raises(UnknownSession):
        store.session("doomed", create=False)
    with pytest.raises(UnknownSession, match="was deleted"):
        session.state.set("a", 1)
    with pytest.raises(UnknownSession, match="was deleted"):
        session.checkpoint()
    with pytest.raises(UnknownSession):
        store.delete("doomed")
    other = store.session("other")
    for _ in range(2):
        for point in ("doomed:@latest", "deleted~1:@latest", "deleted~1:#2", identity):
            with pytest.raises(UnknownPoint):
                other.point(point)
        for place in (Point("doomed", 2), Point("deleted~1", 2), taken):
            with pytest.raises(UnknownSession):
                other.point(place)
        assert store.verify().ok
        collected(store)
    with pytest.raises(UnknownSession):
        session.state.get("memory")


def test_the_name_and_the_key_of_a_deleted_session_are_free(store: Store, work: Path) -> None:
    filled(store, work, key="from elsewhere")
    store.delete("doomed")
    again = store.session("doomed", key="from elsewhere")
    assert again.state.get("") == {}
    assert [one.name for one in store.sessions()] == ["doomed"]
    for _ in range(2):
        assert store.verify().ok
        assert again.checkpoints() == []
        again.state.set("a", 1)
        collected(store)


@pytest.mark.parametrize("others", [False, True])
def test_bytes_of_a_deleted_session_are_gone_after_a_collection(
    store: Store, work: Path, others: bool
) -> None:
    if others:
        store.session("before").state.set("memory/large", "kept " * 2_000)
    filled(store, work)
    if others:
        after = store.session("after", workspace=work)
        after.checkpoint()
    assert left(store)
    store.delete("doomed")
    done = collected(store)
    assert done.skipped == ()
    assert done.events > 0
    assert left(store) == []
    assert store.verify().problems == ()
    with engine_of(store).read() as view:
        assert view.deletions().left == 0
    if others:
        assert (work / "file").read_text() == "shared with others"
        (work / "file").write_text("changed")
        after.restore("@latest")
        assert (work / "file").read_text() == "shared with others"
        assert store.session("before").state.get("memory/large") == "kept " * 2_000


def test_a_collection_of_a_deleted_session_may_be_stopped_at_any_step(
    store: Store, work: Path
) -> None:
    store.session("before").state.set("memory/large", "kept " * 2_000)
    filled(store, work)
    store.session("after", workspace=work).checkpoint()
    store.delete("doomed")
    engine, steps, is_done = engine_of(store), 0, False
    with upkeep_lock(engine, wait=False):
        while not is_done:
            steps += 1
            done = reclaim(engine, partial(next, chain(repeat(False, steps), repeat(True))))
            assert done.skipped == ()
            is_done = not done.stopped
    assert steps > 1
    assert left(store) == []
    assert store.verify().problems == ()


def test_a_fork_of_a_deleted_session_stays_whole(store: Store, work: Path) -> None:
    session = filled(store, work)
    point = session.checkpoints()[0]
    fork = session.fork(point, "fork")
    later = session.fork("@latest", "later")
    session.state.set("memory/own", "only " + STATE[::-1])
    store.delete("doomed")
    collected(store)
    # A second session of the name must not be taken for the parent.
    store.session("doomed").checkpoint(label="first")
    assert files_with(Path(store.path or ""), STATE[::-1].encode()) == []
    for one in (fork, later):
        assert one.checkpoints.find("one") is not None
        assert one.point(point).seq == point.seq  # it was read before the session was deleted
        assert one.point(one.checkpoints()[0]).seq == point.seq
        assert one.state.at("first").get("memory/secret") == STATE
        assert one.state.get("memory/large") == LARGE
        one.state.set("memory/more", 1)
        one.checkpoint()
    assert later.parent is not None
    assert later.parent.seq == session.checkpoints()[1].seq
    own = store.session("fork", workspace=work)
    own.restore("first")
    assert (work / "file").read_text() == FILE * 3
    own.undo()
    assert (work / "file").read_text() == "shared with others"
    assert store.verify().problems == ()
    assert sorted(one.name for one in store.sessions()) == ["doomed", "fork", "later"]
    # Once the forks are gone, so is the rest.
    for name in ("fork", "later"):
        store.delete(name)
    assert collected(store).skipped == ()
    assert left(store) == []
    assert store.verify().problems == ()
    assert [one.name for one in store.sessions()] == ["doomed"]


def test_forks_of_forks_keep_what_they_need(store: Store) -> None:
    first = store.session("first")
    first.state.set("a", 1)
    second = first.fork(first.head.seq, "second")
    second.state.set("b", 2)
    third = second.fork(second.head.seq, "third")
    early = second.fork(2, "early")
    second.state.set("c", STATE)
    for name in ("first", "second"):
        store.delete(name)
        collected(store)
        assert store.verify().problems == ()
    assert third.state.get("") == {"a": 1, "b": 2}
    assert early.state.get("") == {"a": 1}
    assert files_with(Path(store.path or ""), STATE.encode()) == []
    store.delete("third")
    collected(store)
    assert early.state.get("") == {"a": 1}
    assert [one.name for one in store.sessions()] == ["early"]
    assert store.verify().problems == ()


def test_a_long_session_goes_in_slices(store: Store) -> None:
    session = store.session("long")
    for start in range(3):
        with session.batch():
            for number in range(SLICE_EVENTS):
                session.state.set(("n", f"k{number % 7}"), start * SLICE_EVENTS + number)
        session.checkpoint(label=f"part {start}")
    fork = session.fork("part 0", "fork")
    before = fork.state.get("")
    engine = engine_of(store)
    with upkeep_lock(engine, wait=False):
        with engine.read() as view:
            record = view.find("long")
        assert record is not None
        assert fold_session(engine, record, session.head.seq - 4, min_events=2).events
        with engine.write() as txn:
            txn.prune(record.number, [txn.checkpoints(record.number, 1, 9_999)[1][0]])
        fold_session(engine, record, session.head.seq - 2, min_events=2)
    store.delete("long")
    assert collected(store).events > 2 * SLICE_EVENTS
    assert fork.state.get("") == before
    assert store.verify().problems == ()
    store.delete("fork")
    collected(store)
    with engine.read() as view:
        assert view.sessions() == []
        assert view.checkpoints_by_id("") == []
    assert store.verify().problems == ()


def test_numbers_of_deleted_sessions_are_not_used_again(store: Store) -> None:
    stale = store.session("one")
    store.delete("one")
    collected(store)
    store.session("two").state.set("a", 1)
    with engine_of(store).read() as view:
        assert [record.number for record in view.sessions()] == [2]
    with pytest.raises(UnknownSession):
        stale.state.set("b", 1)


def test_a_session_in_use_is_not_deleted(store: Store) -> None:
    agent = store.agent("coder", session="run")
    with pytest.raises(LeaseHeld, match="'coder'"):
        store.delete("run")
    agent.state.set("a", 1)
    agent.close()
    dead(store.session("run"), "tester")
    store.delete("run")
    assert store.sessions() == []


@pytest.mark.parametrize("victim", ["own", "other"])
def test_what_an_unfinished_restore_needs_is_not_deleted(
    store: Store, work: Path, victim: str
) -> None:
    filled(store, work, "other")
    own = store.session("own", workspace=work)
    own.checkpoint()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mulligan.workspace.restore.apply.Apply.run", _fails)
        with pytest.raises(OSError, match="on purpose"):
            own.restore("other:first")
    with pytest.raises(RestorePending, match="not finished"):
        store.delete(victim)
    own.files.recover()
    assert (work / "file").read_text() == FILE * 3
    store.delete(victim)
    collected(store)
    if victim == "other":
        own.undo()
        assert (work / "file").read_text() == "shared with others"
        own.redo()
        assert (work / "file").read_text() == FILE * 3
    assert store.verify().problems == ()


def _fails(*_: object, **__: object) -> None:
    raise OSError("on purpose")


def test_a_purge_beside_a_deleted_session(store: Store, work: Path) -> None:
    session = filled(store, work)
    session.fork(session.checkpoints()[0], "fork")
    store.delete("doomed")
    run_purge(store, PurgeTarget(match=STATE), by="anna", reason="leaked")
    assert files_with(Path(store.path or ""), STATE.encode()) == []
    assert store.verify().problems == ()
    collected(store)
    assert store.verify().problems == ()


def test_retention_beside_a_deleted_session(store: Store, work: Path) -> None:
    session = filled(store, work)
    fork = session.fork("@latest", "fork")
    store.delete("doomed")
    engine = engine_of(store)
    for _ in range(2):
        with upkeep_lock(engine, wait=False):
            Pruner(engine, Policy()).run()
        assert store.verify().problems == ()
    assert fork.state.get("memory/secret") == STATE


def test_a_session_is_deleted_between_a_plan_and_its_removals(store: Store) -> None:
    for name in ("doomed", "other"):
        session = store.session(name)
        for number in range(4):
            session.state.set("number", number)
            session.checkpoint("routine")
    engine = engine_of(store)
    pruner = Pruner(engine, Policy(routine=Rules(keep_last=1)))
    with upkeep_lock(engine, wait=False):
        plan = pruner.plan()
        store.delete("doomed")
        pruner.apply(plan)
    assert len(store.session("other").checkpoints()) == 1
    assert store.verify().problems == ()


def test_a_session_of_another_process_keeps_no_files_of_a_deleted_one(
    place: Path, work: Path
) -> None:
    for number in range(20):
        (work / f"file {number}").write_text(f"plain {number}")
    with open_store(place) as store, store.session("doomed", workspace=work) as doomed:
        (work / "secret").write_text(FILE * 40)
        doomed.checkpoint()
    (work / "secret").unlink()
    # It continues from the index that the first one saved, but not from its tree.
    with open_store(place) as store, store.session("after", workspace=work) as after:
        (work / "file 1").write_text("changed")
        after.checkpoint()
        store.delete("doomed")
        assert collected(store).skipped == ()
        assert left(store) == []
        assert store.verify().problems == ()


def test_a_copy_goes_its_own_way(store: Store, work: Path) -> None:
    session = filled(store, work, key="one key")
    size = engine_of(store).storage.size()
    copy = store.copy("doomed", "copy", key="another")
    assert engine_of(store).storage.size() - size < len(LARGE) / 2
    assert copy.state.get("") == session.state.get("")
    assert [one.id for one in copy.checkpoints()] == [one.id for one in session.checkpoints()]
    assert copy.checkpoints.find("one") == session.checkpoints.find("one")
    copy.state.set("memory/own", 1)
    assert session.state.get("memory/own") is None
    for wrong, error in (("doomed", SessionExists), ("copy", SessionExists)):
        with pytest.raises(error):
            store.copy("copy", wrong)
    with pytest.raises(KeyTaken):
        store.copy("copy", "third", key="another")
    with pytest.raises(UnknownSession):
        store.copy("nothing", "third")
    store.delete("doomed")
    collected(store)
    assert copy.state.get("memory/large") == LARGE
    assert store.verify().problems == ()


def test_deletions_are_there_after_reopening(place: Path, work: Path) -> None:
    with mulligan.open(place) as store:
        filled(store, work)
        store.copy("doomed", "copy")
        store.delete("doomed")
    with mulligan.open(place) as store:
        assert [one.name for one in store.sessions()] == ["copy"]
        assert store.session("copy").state.get("memory/secret") == STATE


def test_in_memory_and_with_asyncio(work: Path) -> None:
    async def run() -> None:
        async with await aio.open("memory:") as store:
            session = await store.session("run")
            await session.state.set("a", 1)
            copy = await store.copy("run", "copy")
            await store.delete("run")
            assert await copy.state.get("a") == 1
            for handle in (session, copy):
                await handle.close()

    asyncio.run(run())
