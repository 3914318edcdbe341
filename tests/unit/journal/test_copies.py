"""Copies of events among the objects: written by checkpoints, kept while they are needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from mulligan import Store
from mulligan.errors import DamagedObject
from mulligan.journal import copies
from mulligan.journal.copies import copied_records, events_to_copy
from mulligan.journal.records import PLACE
from mulligan.model import ObjectKind
from mulligan.testing.objects import noise
from mulligan.testing.stores import open_store
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.retention.policy import Policy
from mulligan.upkeep.retention.prune import Pruner
from mulligan.upkeep.space.fold import fold_session
from mulligan.upkeep.space.gc import collect


@pytest.fixture(autouse=True)
def copies_at_each_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at those that write no other object."""
    monkeypatch.setattr("mulligan.session.write.checkpointer.MAX_UNCOPIED", 1)


def copied(store: Store, number: int = 1) -> dict[int, bytes]:
    """Return the records of events that copies have, by seq."""
    engine = store._engine
    with engine.read() as view:
        digests = [copy.digest for copy in view.copies()]
    found: dict[int, bytes] = {}
    for digest in digests:
        for record in copied_records(engine.objects.get(ObjectKind.EVENTS, digest)):
            if len(record.key) == PLACE.size and len(record.value) > 60:
                owner, seq = PLACE.unpack(record.key)
                found |= {seq: record.value} if owner == number else {}
    return found


def test_a_checkpoint_copies_the_events_before_it(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        session = store.session("run")
        for number in range(5):
            session.state.set("step", number)
            session.checkpoint()
        found = copied(store)
        with store._engine.read() as view:
            expected = view.event_records(1, 1, session.head.seq - 1)
        assert list(found.values()) == expected


def test_a_checkpoint_without_objects_copies_only_many_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a checkpoint has no sync of objects, which a copy would need."""
    monkeypatch.setattr("mulligan.session.write.checkpointer.MAX_UNCOPIED", 20)
    with open_store(tmp_path) as store:
        session = store.session("run")
        session.checkpoint()  # stores the environment, and with it a copy
        before = len(copied(store))
        while session.head.seq - before < 19:
            session.state.set("step", 1)
            session.checkpoint()
            assert len(copied(store)) == before
        session.state.set("step", 2)
        session.checkpoint()
        assert len(copied(store)) == session.head.seq - 1


def test_events_between_checkpoints_write_no_object(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        session = store.session("run")
        session.checkpoint()
        with store._engine.read() as view:
            before = len(list(view.locations()))
        session.state.set("step", 1)
        with store._engine.read() as view:
            assert len(list(view.locations())) == before


def test_an_old_store_is_caught_up_with_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "MAX_EVENTS", 10)
    with open_store(tmp_path) as store:
        session = store.session("run")
        for number in range(25):
            session.state.set("step", number)
        sizes = []
        for _ in range(4):
            session.checkpoint()
            sizes.append(len(copied(store)))
        assert sizes == [10, 20, 28, 29]


def test_a_fork_copies_its_own_events(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        session = store.session("run")
        session.checkpoint(label="here")
        fork = session.fork("here", "fork")
        fork.state.set("step", 1)
        fork.checkpoint()
        assert list(copied(store, 2)) == [3, 4]


def test_a_collection_keeps_copies_until_their_events_are_folded(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        engine, session = store._engine, store.session("run")
        for number in range(12):
            session.state.set("step", number)
            session.checkpoint()
        with engine.write() as txn:
            txn.prune(1, [seq for seq, _ in txn.checkpoints(1, 1, session.head.seq - 2)])
        with upkeep_lock(engine, wait=False):
            collect(engine)
            assert len(copied(store)) == session.head.seq - 1
            fold_session(engine, store._record("run", False, "cli"), 18, min_events=2)
            collect(engine)
        remaining = copied(store)
        assert set(range(18, session.head.seq)) <= set(remaining)
        assert 8 not in remaining
        assert store.verify(full=True).problems == ()
        session.checkpoint()
        assert session.head.seq - 1 in copied(store)


def test_pruning_copies_what_no_event_holds(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        engine, session = store._engine, store.session("run")
        for number in range(8):
            session.state.set("step", number)
            session.checkpoint("routine")
        with upkeep_lock(engine, wait=False):
            pruned = Pruner(engine, Policy(), lambda policy: policy).run()
        assert pruned.removed
        with engine.read() as view:
            expected = set(view.removal_records(1))
            digests = [copy.digest for copy in view.copies()]
        found = {
            (record.key, record.value)
            for digest in digests
            for record in copied_records(engine.objects.get(ObjectKind.EVENTS, digest))
        }
        assert expected
        assert expected <= found


def test_a_damaged_copy_is_written_again_by_the_next_checkpoint(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        session, other = store.session("run"), store.session("other")
        for number in range(3):
            session.state.set("step", noise(3_000, number).hex())
            session.checkpoint()
            other.checkpoint()
        engine = store._engine
        before = copied(store)
        for pack in (tmp_path / ".mulligan" / "packs").iterdir():
            pack.unlink()
    with open_store(tmp_path) as store:
        assert not store.verify(full=True).ok
        store.session("other").checkpoint()
        engine = store._engine
        with engine.read() as view:
            damaged, listed = set(view.damaged()), {copy.digest for copy in view.copies()}
        assert not damaged & listed
        assert copied(store) == before


def test_a_copy_moves_like_every_object(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        engine, session = store._engine, store.session("run")
        session.checkpoint()
        session.checkpoint()
        before = copied(store)
        with engine.read() as view:
            [digest, *_] = [copy.digest for copy in view.copies()]
            place = view.locate(digest)
        assert place is not None
        entries = engine.objects.entries_at(place, -1)
        assert entries is not None
        moved = engine.objects.copy([(entries[place.slot], place)])
        with engine.write() as txn:
            txn.index_objects({}, moved.area_lengths)
            assert txn.relocate(moved.moves) == 1
        assert copied(store) == before


def test_a_copy_of_a_later_version_is_refused() -> None:
    with pytest.raises(DamagedObject):
        list(copied_records(b"\x95\x02\x01\x01\x90\x90"))
    with pytest.raises(DamagedObject):
        list(copied_records(b"garbage"))


def test_nothing_to_copy_is_no_copy(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        session = store.session("run")
        session.checkpoint()
        session.checkpoint()
        with store._engine.read() as view:
            found = events_to_copy(view, 1)
        assert found is not None
        assert len(found.events) == 1


def test_a_copy_that_differs_from_the_events_is_reported(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        session = store.session("run")
        for number in range(3):
            session.state.set("step", number)
            session.checkpoint()
        assert store.verify(full=True).warnings == ()
        engine = store._engine
        with engine.read() as view:
            [*_, last] = view.copies()
            records = view.event_records(1, last.first, last.last)
        wrong = copies.EventCopy(1, 1, last.first, [bytes(reversed(r)) for r in records], [])
        with engine.pin():
            bundle = engine.bundle()
            made = copies.put_copy(wrong, bundle.put)
            with engine.write(bundle, session=1) as txn:
                txn.put_copy(1, made.first, made.last, made.digest)
        assert store.verify(full=False).warnings == ()
        report = store.verify(full=True)
        assert report.ok
        [found] = report.warnings
        assert found.detail == f"event #{last.first} differs from the journal"
