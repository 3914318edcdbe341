"""Parts of long lists: only what is asked for is loaded, now and at points of the past."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan import MISSING, Session, Store
from mulligan.document.compare import MAX_SINGLE
from mulligan.errors import InvalidPath, StateError
from mulligan.model import ObjectKind
from mulligan.store import engine_of
from mulligan.upkeep.space.fold import fold_session
from mulligan.upkeep.space.reclaim_space import reclaim

ITEMS = 20_000
LOADS = 5
"""The most objects that are read on the way to one place of the list."""


class Loads:
    """Counts the objects that are read."""

    def __init__(self, store: Store, patch: pytest.MonkeyPatch) -> None:
        objects = engine_of(store).objects
        self.count = 0
        self._get = objects.get
        patch.setattr(objects, "get", self._counted)

    def _counted(self, kind: ObjectKind, digest: Any) -> bytes:
        self.count += 1
        return self._get(kind, digest)

    def during(self, work: Any) -> int:
        before = self.count
        work()
        return self.count - before


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return mulligan.open(tmp_path)


@pytest.fixture
def session(store: Store) -> Session:
    """A session with a long list, all of it in objects."""
    store.session("run").state.extend("log", [f"message {n} {'x' * 90}" for n in range(ITEMS)])
    return store.session("run")


def test_length_slice_and_tail_load_what_they_return(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.checkpoint()
    loads, state, past = Loads(store, monkeypatch), session.state, session.state.at("@latest")
    for read in (state, past):
        assert loads.during(lambda read=read: read.length("log")) <= LOADS
        assert loads.during(lambda read=read: read.tail("log", 10)) <= LOADS
        assert loads.during(lambda read=read: read.slice("log", 9_000, 9_010)) <= LOADS
        assert [item.split()[1] for item in read.tail("log", 2)] == ["19998", "19999"]
        assert [item.split()[1] for item in read.slice("log", 9_000, 9_002)] == ["9000", "9001"]
        assert read.length("log") == ITEMS
        assert len(read.slice("log", -70, -5)) == 65


def test_the_end_of_a_list_is_removed_without_loading_the_rest(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.state.length("log")
    loads = Loads(store, monkeypatch)
    assert loads.during(lambda: session.state.pop("log")) <= 3 * LOADS
    assert loads.during(lambda: session.state.delete("log/-1")) <= 3 * LOADS
    assert loads.during(lambda: session.state.truncate("log", ITEMS - 4)) <= 6 * LOADS
    assert loads.during(lambda: session.state.truncate("log", 10_000)) <= 3 * LOADS
    assert session.state.length("log") == 10_000
    assert store.session("run").state.get("log/-1").startswith("message 9999 ")
    assert store.verify().ok


def test_a_truncated_list_is_stored_by_reference(store: Store, session: Session) -> None:
    before = _stored(store)
    session.state.truncate("log", ITEMS - MAX_SINGLE - 1)
    assert _stored(store) - before < 20_000


def test_what_a_shortened_list_shares_outlives_the_longer_one(
    store: Store, session: Session
) -> None:
    expected = session.state.slice("log", 0, 10_000)
    session.state.truncate("log", 10_000)
    for number in range(20):
        session.state.set("count", number)
    engine = engine_of(store)
    with engine.read() as view:
        record = view.find("run")
    assert record is not None
    # Up to the cut: the event that made the longer list is folded away with its keyframe.
    fold_session(engine, record, session.head.seq - 5, min_events=1)
    reclaim(engine)
    fresh = store.session("run")
    assert fresh.state.get("log") == expected
    assert fresh.state.at(session.head.seq - 3).get("log") == expected
    assert store.verify().ok


def _stored(store: Store) -> int:
    with engine_of(store).read() as view:
        return sum(view.area_lengths().values())


def test_what_is_missing_is_empty_and_what_is_no_list_is_refused(store: Store) -> None:
    state = store.session("run").state
    assert (state.length("log"), state.slice("log"), state.tail("log", 3)) == (0, [], [])
    assert state.pop("log") is None
    assert state.pop("log", MISSING) is MISSING
    state.truncate("log", 3)
    assert state.get() == {}
    state.set("memory/text", "words")
    assert state.length("memory") == 1
    assert state.length() == 1
    for wrong in (
        lambda: state.length("memory/text"),
        lambda: state.slice("memory"),
        lambda: state.tail("memory/text", 1),
        lambda: state.pop("memory"),
        lambda: state.pop(""),
        lambda: state.truncate("memory/text", 0),
        lambda: state.truncate("log", -1),
        lambda: state.truncate("log", True),
        lambda: state.tail("log", -1),
    ):
        with pytest.raises(InvalidPath):
            wrong()


def test_each_of_two_threads_pops_another_item(store: Store) -> None:
    store.session("run").state.extend("log", list(range(40)))
    taken: list[int] = []

    def take() -> None:
        own = store.session("run")
        while (item := own.state.pop("log")) is not None:
            taken.append(item)

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(40))


def test_an_item_cannot_be_popped_inside_a_batch(store: Store) -> None:
    session = store.session("run")
    session.state.append("log", 1)
    with session.batch():
        with pytest.raises(StateError):
            session.state.pop("log")
        session.state.truncate("log", 0)
        assert session.state.length("log") == 0
    assert session.state.get("log") == []
