"""What a write returns is what its decision returned in the run that was committed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import FrameType

import pytest

import mulligan
from mulligan import Session, Store
from mulligan.document.fold import SET, STATE
from mulligan.errors import Conflict
from mulligan.session.write.decisions import Changes
from mulligan.store import engine_of
from tests.threads import elsewhere


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with mulligan.open(tmp_path / "store") as store:
        yield store


@pytest.fixture
def session(store: Store) -> Session:
    session = store.session("run")
    session.state.set("count", 1)
    return session


def test_a_decision_that_runs_again_returns_what_the_second_run_did(
    store: Store, session: Session
) -> None:
    runs: list[int] = []

    def decide(work: Changes) -> int:
        count: int = work.document.find((*STATE, "count"))
        runs.append(count)
        if len(runs) == 1:
            elsewhere(lambda: store.session("run").state.set("count", 10))
        work.add((SET, {"path": ["count"], "value": count + 1}))
        return count

    assert session._writer.write(decide) == 10
    assert runs == [1, 10]
    assert session.state.get("count") == 11


def test_inside_a_batch_the_result_is_that_of_the_batch_so_far(session: Session) -> None:
    with session.batch():
        session.state.set("count", 5)
        assert session._writer.write(lambda work: work.document.find((*STATE, "count"))) == 5


def test_a_decision_that_raises_inside_a_batch_leaves_nothing_there(session: Session) -> None:
    def decide(work: Changes) -> None:
        work.add((SET, {"path": ["half"], "value": True}))
        raise Conflict("no")

    with session.batch():
        with pytest.raises(Conflict):
            session._writer.write(decide)
        assert session.state.get("half") is None
        session.state.set("count", 2)
    assert session.state.get() == {"count": 2}


@pytest.mark.parametrize("is_in_batch", [False, True])
def test_a_thread_whose_decision_was_interrupted_writes_again(
    store: Store, session: Session, is_in_batch: bool
) -> None:
    """Ctrl-C anywhere, as Python looks for signals at the start of a function and after a call."""
    engine, left = engine_of(store), 0

    def interrupt(frame: FrameType, event: str, arg: object) -> None:
        nonlocal left
        is_ours = frame.f_code.co_filename.endswith("/mulligan/engine.py")
        if is_ours and event in ("call", "c_return") and engine._deciding:
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    for tries in range(100):
        left = tries
        try:
            with session.batch() if is_in_batch else nullcontext():
                sys.setprofile(interrupt)
                session.state.set("a", tries)
                sys.setprofile(None)
        except KeyboardInterrupt:
            session.state.set("a", "again")
        else:
            break
    assert session.state.get("a") == tries > 0
