"""The data that a program keeps with a checkpoint."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from mulligan import Session, Store
from mulligan.store import engine_of
from mulligan.testing.stores import open_store
from mulligan.upkeep import PurgeTarget, run_purge
from mulligan.upkeep.space.reclaim_space import reclaim

LARGE = {"words": ["word " * 300] * 8, "blob": b"\0" * 9_000}


def test_data_comes_back_as_it_was_given(tmp_path: Path) -> None:
    data = {"step": 7, "when": datetime(2026, 1, 2, tzinfo=UTC), "nested": {"a": [1, None, 2.5]}}
    with open_store(tmp_path) as store:
        session = store.session("run")
        taken = session.checkpoint(data=data)
        assert taken.data == data
        assert session.checkpoint().data == {}
    with open_store(tmp_path) as store:
        found = store.session("run").checkpoints()
        assert [one.data for one in found] == [data, {}]


def test_later_changes_of_the_dictionary_do_not_reach_the_checkpoint(session: Session) -> None:
    data = {"list": [1]}
    with session.batch() as batch:
        batch.checkpoint(data=data)
        data["list"].append(2)
    assert batch.result is not None
    assert batch.result.data == {"list": [1]}


def test_large_data_survives_a_collection(store: Store, session: Session) -> None:
    """Its large values are objects, which the event refers to."""
    session.checkpoint(data=LARGE)
    session.checkpoint()
    reclaim(engine_of(store))
    assert session.checkpoints()[0].data == LARGE
    assert store.verify(full=True).problems == ()


def test_a_secret_in_the_data_can_be_purged(tmp_path: Path) -> None:
    secret = "sk-live-Zq8vKx03LmPw7RtY"
    with open_store(tmp_path) as store:
        session = store.session("run")
        session.checkpoint(data={"key": secret, "step": 1})
        session.checkpoint()
        done = run_purge(store, PurgeTarget(match=secret), by="anna", reason="leaked")
        assert done.is_proved
        data = store.session("run").checkpoints()[0].data
        assert data["step"] == 1
        assert secret not in str(data)
        assert store.verify(full=True).problems == ()


def test_lost_data_does_not_hide_the_checkpoint(store: Store, session: Session) -> None:
    taken = session.checkpoint(data=LARGE)
    engine = engine_of(store)
    with engine.read() as view:
        event = next(view.events(1, taken.seq, taken.seq))
    lost = event.payload["data"]["blob"].digest
    with engine.write() as txn:
        txn._writer.delete("objects", lost)  # type: ignore[attr-defined]
    fresh = store.session("run")
    [found] = fresh.checkpoints()
    assert found.id == taken.id
    assert found.data == {}
    assert store.verify().problems != ()
