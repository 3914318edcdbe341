"""``state.transaction``: a function that reads and writes, with nothing in between."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan import Session, State, Store, aio
from mulligan.errors import Conflict, InvalidPath, StaleLease, StateError
from tests.children import run_child
from tests.threads import elsewhere


class Failed(Exception):
    """Raised inside a transaction to make it fail."""


def add_one(state: State) -> int:
    value: int = state.get("count", 0) + 1
    state.set("count", value)
    return value


def test_it_is_one_transaction_and_returns_the_result(session: Session) -> None:
    def function(state: State) -> str:
        state.set("a", 1)
        state.append("list", state.get("a") + 1)
        state.put("map", {"x": state.tail("list", 1)})
        state.delete("a")
        return "done"

    before = session.head.seq
    assert session.state.transaction(function) == "done"
    assert session.state.get("") == {"list": [2], "map": {"x": [2]}}
    assert [event.kind for event in session.events(since=before)] == [
        "state.set",
        "state.append",
        "state.set",
        "state.delete",
    ]
    assert len({event.time for event in session.events(since=before)}) == 1


def test_it_runs_again_on_what_another_wrote_meanwhile(session: Session, store: Store) -> None:
    """Only the last run counts, and it sees the state that its changes follow."""
    session.state.set("count", 1)
    runs: list[int] = []

    def function(state: State) -> int:
        runs.append(state.get("count"))
        if len(runs) == 1:
            elsewhere(lambda: store.session("run").state.set("count", 10))
        return add_one(state)

    assert session.state.transaction(function) == 11
    assert runs == [1, 10]
    assert session.state.get("count") == 11


@pytest.mark.parametrize("error", [KeyError, Conflict])
def test_an_error_that_an_outdated_state_caused_is_not_raised(
    session: Session, store: Store, error: type[Exception]
) -> None:
    """What this handle knows may be out of date, so the first run decides nothing."""
    session.state.set("ready", False)
    store.session("run").state.set("ready", True)

    def function(state: State) -> str:
        if not state.get("ready"):
            raise error("not yet")
        return "ready"

    assert session.state.transaction(function) == "ready"


def test_threads_and_processes_lose_no_count(store: Store, session: Session) -> None:
    code = (
        "import sys, mulligan\n"
        "session = mulligan.open(sys.argv[1]).session('run')\n"
        "for _ in range(25):\n"
        "    session.state.transaction(lambda s: s.set('count', s.get('count', 0) + 1))\n"
    )
    others = [subprocess.Popen([sys.executable, "-c", code, str(store.path)]) for _ in range(2)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: session.state.transaction(add_one), range(100)))
    assert [other.wait(300) for other in others] == [0, 0]
    assert session.state.get("count") == 150


def test_if_it_raises_nothing_is_written(session: Session) -> None:
    before = session.head

    def function(state: State) -> None:
        state.set("a", 1)
        raise Failed

    with pytest.raises(Failed):
        session.state.transaction(function)
    assert session.head == before
    assert session.state.get("") == {}


def test_an_error_that_is_caught_inside_leaves_nothing_of_its_call(session: Session) -> None:
    def function(state: State) -> None:
        state.set("text", "no list")
        with pytest.raises(InvalidPath):
            state.append("text", 1)
        with pytest.raises(Conflict):
            state.set("text", 2, expected=1)
        state.set("b", 2)

    before = session.head.seq
    session.state.transaction(function)
    assert session.state.get("") == {"text": "no list", "b": 2}
    assert session.head.seq == before + 2
    with session.batch():
        session.state.transaction(function)
    assert session.head.seq == before + 4


def test_a_long_one_that_fails_in_the_middle_keeps_its_keyframes_right(
    session: Session, store: Store
) -> None:
    """A call that raises may already have made a keyframe."""

    def fill(state: State, count: int, *, fails: bool) -> None:
        for number in range(count):
            state.set(("n", str(number % 70)), number)
        if fails:
            raise Failed

    def function(state: State) -> None:
        fill(state, 300, fails=False)
        with pytest.raises(Failed):
            state.transaction(lambda inner: fill(inner, 400, fails=True))
        fill(state, 500, fails=False)

    session.state.transaction(function)
    assert session.head.seq == 801
    assert store.verify(full=True).problems == ()


def test_other_writes_are_refused_inside(session: Session, store: Store) -> None:
    """They would wait for the transaction for ever, or happen twice."""
    other = store.session("other")
    before = other.head, session.head
    for write in (
        lambda: session.state.set("a", 1),
        lambda: other.state.set("a", 1),
        session.checkpoint,
        lambda: session.state.transaction(add_one),
        lambda: session.batch().__enter__(),
        lambda: store.session("new"),
        lambda: store.agent("coder", session="run"),
    ):
        with pytest.raises(StateError, match="transaction"):
            session.state.transaction(lambda _, write=write: write())
        with session.batch(), pytest.raises(StateError, match="transaction"):
            session.state.transaction(lambda _, write=write: write())
    assert (other.head, session.head) == before
    assert [found.name for found in store.sessions()] == ["run", "other"]
    session.state.set("a", 1)


def test_a_process_that_is_forked_inside_may_write(tmp_path: Path) -> None:
    """Its threads have the numbers of those of its parent, which decide something."""
    session = mulligan.open(tmp_path).session("run")
    session.state.set("a", 1)
    ended: list[bool] = []

    def function(state: State) -> None:
        if not ended:  # the second run is inside the transaction: nothing can be forked there
            ended.append(run_child(lambda tell: session.state.set("child", 1)).finished)

    session.state.transaction(function)
    assert ended == [True]
    assert session.state.get("child") == 1


def test_reading_elsewhere_is_allowed_inside(session: Session, store: Store) -> None:
    session.state.set("n", 1)
    other = store.session("other")
    other.state.set("n", 2)
    found = session.state.transaction(lambda state: [s.state.get("n") for s in (session, other)])
    assert found == [1, 2]


def test_the_state_is_of_no_use_afterwards(session: Session) -> None:
    kept: list[State] = []
    session.state.transaction(kept.append)
    for use in (lambda: kept[0].set("a", 1), lambda: kept[0].get("")):
        with pytest.raises(StateError, match="is over"):
            use()


def test_a_coroutine_function_is_refused(session: Session) -> None:
    async def function(state: State) -> None:
        state.set("a", 1)

    with pytest.raises(StateError, match="coroutine"):
        session.state.transaction(function)
    assert session.state.get("") == {}


def test_components_with_their_own_api_stay_guarded(session: Session) -> None:
    with pytest.raises(InvalidPath):
        session.state.transaction(lambda state: state.set("tasks/1", {}))


def test_in_a_batch_it_runs_again_at_the_end(session: Session, store: Store) -> None:
    with session.batch() as batch:
        assert session.state.transaction(add_one) == 1
        assert session.state.get("count") == 1
        store.session("run").state.set("count", 10)
        batch.checkpoint()
    assert session.state.at(batch.seq).get() == {"count": 11}


def test_popping_is_possible_unless_a_batch_would_pop_again(session: Session) -> None:
    session.state.set("list", [1, 2, 3])

    def move(state: State) -> Any:
        item = state.pop("list")
        state.append("done", item)
        return item

    assert session.state.transaction(move) == 3
    assert session.state.get("") == {"list": [1, 2], "done": [3]}
    with session.batch(), pytest.raises(StateError, match="batch"):
        session.state.transaction(move)


def test_a_fenced_writer_writes_nothing(tmp_path: Path) -> None:
    store = mulligan.open(tmp_path)
    old = store.agent("coder", session="run")
    new = store.agent("coder", session="run", steal=True)
    with pytest.raises(StaleLease):
        old.state.transaction(add_one)
    assert new.state.transaction(add_one) == 1


def test_with_asyncio_it_runs_in_the_thread_of_the_session() -> None:
    async def run() -> None:
        async with await aio.open("memory:") as store, await store.session("run") as session:
            many = (session.state.transaction(add_one) for _ in range(20))
            assert sorted(await asyncio.gather(*many)) == list(range(1, 21))

    asyncio.run(run())
