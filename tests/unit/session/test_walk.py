"""Walks over checkpoints: what they yield, how little they read, and what happens beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mulligan import Session, StateView, Store
from mulligan.document.history import KEYFRAME_EVERY
from mulligan.errors import InvalidPath, PointFolded, UnknownSession
from mulligan.store import engine_of
from mulligan.testing.stores import open_store
from mulligan.upkeep import PurgeTarget, run_purge
from mulligan.upkeep.space.fold import fold_session
from mulligan.upkeep.space.reclaim_space import reclaim
from tests.decoded import DecodedEvents


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store") as opened:
        yield opened


def play(session: Session, steps: int, kind: str = "routine") -> list[int]:
    """Append a message and take a checkpoint so often; return the checkpoints' seqs."""
    seqs = []
    for number in range(steps):
        session.state.append("log", number)
        seqs.append(session.checkpoint(kind).seq)
    return seqs


def logs(steps: Iterator[tuple[Any, StateView]]) -> list[tuple[int, list[int]]]:
    return [(checkpoint.seq, view.get("log")) for checkpoint, view in steps]


def test_it_yields_every_checkpoint_with_the_state_at_it(store: Store) -> None:
    session = store.session("run")
    seqs = play(session, 5)
    expected = [(seq, list(range(n + 1))) for n, seq in enumerate(seqs)]
    assert logs(session.checkpoints.walk()) == expected[::-1]
    assert logs(session.checkpoints.walk(newest_first=False)) == expected
    assert logs(session.checkpoints.walk(limit=2)) == expected[:2:-1]
    assert logs(session.checkpoints.walk(False, 2)) == expected[:2]
    assert logs(session.checkpoints.walk(since=seqs[1], until=seqs[3])) == expected[3:1:-1]
    assert logs(session.checkpoints.walk(limit=0)) == []
    checkpoint, view = next(session.checkpoints.walk(until=seqs[2]))
    assert (checkpoint.id, view.point.seq) == (session.checkpoints.at(seqs[2]).id, seqs[2])
    with pytest.raises(InvalidPath):
        session.checkpoints.walk(limit=-1)


def test_a_kind_is_counted_towards_the_limit_and_no_other(store: Store) -> None:
    session = store.session("run")
    play(session, 2, "mine")
    play(session, 3)
    wanted = play(session, 2, "mine")
    assert [seq for seq, _ in logs(session.checkpoints.walk(kind="mine", limit=3))] == [
        *wanted[::-1],
        5,
    ]


def test_it_passes_keyframes_both_ways_and_goes_back_into_the_parent(store: Store) -> None:
    parent = store.session("run")
    seqs = play(parent, KEYFRAME_EVERY // 2 + 40)
    fork = parent.fork(seqs[-20], "fork")
    own = play(fork, 3)
    expected = [*seqs[:-19], *own]
    assert [c.seq for c, _ in fork.checkpoints.walk()] == expected[::-1]
    assert [c.seq for c, _ in fork.checkpoints.walk(newest_first=False)] == expected
    for checkpoint, view in fork.checkpoints.walk():
        assert view.tail("log", 1) == fork.state.at(checkpoint).get("log")[-1:]


def test_a_long_walk_reads_each_event_a_few_times_only(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.session("run")
    steps = KEYFRAME_EVERY + 100
    play(session, steps)
    fresh, counter = store.session("run"), DecodedEvents(monkeypatch)
    head = session.head.seq
    read = counter.during(lambda: [view.length("log") for _, view in fresh.checkpoints.walk()])
    # One replay of all events, and each checkpoint's own event for its record.
    assert read <= head + steps + KEYFRAME_EVERY


def test_it_is_read_as_far_as_it_is_used(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    session = store.session("run")
    play(session, KEYFRAME_EVERY + 200)
    fresh, counter = store.session("run"), DecodedEvents(monkeypatch)
    assert counter.during(lambda: next(fresh.checkpoints.walk())) <= 2 * KEYFRAME_EVERY
    assert counter.during(lambda: list(fresh.checkpoints.walk(limit=10))) <= 2 * KEYFRAME_EVERY


@pytest.mark.parametrize("backwards", [True, False])
def test_points_near_each_other_are_not_each_replayed(
    store: Store, monkeypatch: pytest.MonkeyPatch, backwards: bool
) -> None:
    session = store.session("run")
    seqs = play(session, KEYFRAME_EVERY)[100:200]
    fresh, counter = store.session("run"), DecodedEvents(monkeypatch)
    order = seqs[::-1] if backwards else seqs
    read = counter.during(lambda: [fresh.state.at(seq).get("log/-1") for seq in order])
    assert read <= 3 * KEYFRAME_EVERY
    assert [fresh.state.at(seq).get("log/-1") for seq in order] == [
        session.state.at(seq).get("log/-1") for seq in order
    ]


def test_points_between_checkpoints_profit_as_well(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.session("run")
    for number in range(KEYFRAME_EVERY - 10):
        session.state.append("log", number)
    fresh, counter = store.session("run"), DecodedEvents(monkeypatch)
    seqs = range(KEYFRAME_EVERY - 20, KEYFRAME_EVERY - 120, -1)
    read = counter.during(lambda: [fresh.state.at(seq).get("log/-1") for seq in seqs])
    assert read <= 64 * len(seqs)  # and not nearly 512 each


def test_what_happens_during_a_walk_is_as_documented(store: Store) -> None:
    session = store.session("run")
    seqs = play(session, KEYFRAME_EVERY)
    walk = session.checkpoints.walk()
    _, newest = next(walk)
    play(session, 1)  # newer than the start of the walk
    number = session.internal.engine.read
    with number() as view:
        record = view.find("run")
    assert record is not None
    pruned = seqs[100:200]
    with engine_of(store).write(session=record.number) as txn:
        txn.prune(record.number, pruned)
    rest = list(walk)
    walked = [checkpoint.seq for checkpoint, _ in rest]
    assert walked == [seq for seq in reversed(seqs[:-1]) if seq not in pruned]
    assert newest.get("log") == list(range(KEYFRAME_EVERY))


def test_a_view_of_a_point_that_was_folded_away_says_so(store: Store) -> None:
    session = store.session("run")
    seqs = play(session, 60)
    kept = list(session.checkpoints.walk(newest_first=False))
    loose = session.state.at(seqs[20] + 1)
    with engine_of(store).read() as view:
        record = view.find("run")
    assert record is not None
    with engine_of(store).write(session=record.number) as txn:
        txn.prune(record.number, seqs[10:40])
    fold_session(engine_of(store), record, session.head.seq, min_events=1)
    reclaim(engine_of(store))
    for n, (checkpoint, view_of_it) in enumerate(kept):
        if 10 <= n < 40:
            with pytest.raises(PointFolded):
                view_of_it.get("log")
        else:
            assert view_of_it.get("log") == list(range(n + 1)), checkpoint
    with pytest.raises(PointFolded):
        loose.length("log")
    assert len(list(session.checkpoints.walk())) == 30


def test_a_view_does_not_show_what_was_purged_since(store: Store) -> None:
    session = store.session("run")
    session.state.append("log", "the secret word")
    session.checkpoint()
    view = session.state.at("@latest")
    _, walked = next(session.checkpoints.walk())
    run_purge(store, PurgeTarget(match="secret"), by="anna", reason="leaked")
    for each in (view, walked):
        assert "secret" not in str(each.get("log"))
        assert "secret" not in str(each.tail("log", 1))


def test_a_view_of_the_past_stays_while_the_present_goes_on(store: Store) -> None:
    session = store.session("run")
    session.state.set("a", 1)
    view = session.state.at(session.head)
    session.state.set("a", 2)
    assert (view.get("a"), session.state.get("a"), view.get("b", 3)) == (1, 2, 3)
    assert repr(view) == "<StateView of 'run' #2>"


def test_a_view_of_a_deleted_session_says_so(store: Store) -> None:
    session = store.session("run")
    play(session, 3)
    walk = session.checkpoints.walk(newest_first=False)
    _, view = next(walk)
    for again in (False, True):
        if not again:
            store.delete("run")
        else:
            play(store.session("run"), 3)
        with pytest.raises(UnknownSession):
            view.get("log")


def test_a_walk_that_meets_a_deleted_session_ends_with_an_error(store: Store) -> None:
    session = store.session("run")
    play(session, KEYFRAME_EVERY)
    walk = session.checkpoints.walk()
    next(walk)
    store.delete("run")
    with pytest.raises(UnknownSession):
        list(walk)
    assert store.sessions("ru") == []


def test_a_session_walks_and_finds_by_itself(session: Session) -> None:
    session.state.set("x", 1)
    taken = session.checkpoint(key="one")
    session.checkpoint()
    assert session.find("one") == session.checkpoints.find("one") == taken
    [(oldest, view)] = session.walk(newest_first=False, limit=1, kind="manual")
    assert (oldest, view.get("x")) == (taken, 1)
