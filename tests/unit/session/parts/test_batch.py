"""A batch takes a checkpoint in the transaction of its changes, and knows where it ended."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan import Batch, Session, Store
from mulligan.errors import BatchOpen, Conflict, InvalidName, KeyTaken, StaleLease, StateError
from mulligan.failpoints import Failpoint
from mulligan.session.write.checkpoint_request import MAX_DATA
from mulligan.store import engine_of
from mulligan.testing.failpoints import FailpointCounter
from mulligan.testing.stores import open_store


class Failed(Exception):
    """Raised inside a batch to make it fail."""


def kinds(session: Session, since: int) -> list[str]:
    return [event.kind for event in session.events(since=since)]


def attempt(
    session: Session, error: type[Exception], write: Callable[[Batch], object], fails: bool = True
) -> Batch:
    """Run a batch that takes a checkpoint and ends with an error; return what is left of it."""
    found: list[Batch] = []

    def run() -> None:
        with session.batch() as batch:
            found.append(batch)
            batch.checkpoint("routine")
            write(batch)
            if fails:
                raise Failed

    with pytest.raises(error):
        run()
    return found[0]


def test_state_and_checkpoint_are_one_transaction(tmp_path: Path) -> None:
    counter = FailpointCounter()
    with open_store(tmp_path, failpoint=counter) as store:
        session = store.session("run")
        session.checkpoint()
        before, commits = session.head.seq, counter.counts[Failpoint.JOURNAL_COMMITTED]
        with session.batch() as batch:
            session.state.set("a", 1)
            batch.checkpoint("routine", "why", "here", data={"step": 7})
            session.state.append("list", 2)
        assert counter.counts[Failpoint.JOURNAL_COMMITTED] == commits + 1
        assert kinds(session, before) == ["state.set", "state.append", "checkpoint.created"]
        taken = batch.result
        assert taken is not None
        assert (taken.seq, taken.kind, taken.note) == (batch.seq, "routine", "why")
        assert (taken.label, taken.data) == ("here", {"step": 7})
        assert session.head.seq == batch.seq
        assert session.checkpoints.at("here") == taken
        assert session.state.at(taken).get() == {"a": 1, "list": [2]}
        assert store.verify().problems == ()


def test_what_was_written_is_known_without_a_read(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.checkpoint()
    with session.batch() as batch:
        session.state.set("a", 1)
        batch.checkpoint()
    monkeypatch.setattr(session._engine, "read", None)
    assert batch.result is not None
    assert batch.seq == batch.result.seq


def test_files_are_those_of_the_end_of_the_block(session: Session, work: Path) -> None:
    (work / "file").write_text("before")
    with session.batch() as batch:
        batch.checkpoint()
        session.state.set("a", 1)
        (work / "file").write_text("in the block")
    assert batch.result is not None
    assert session.files.read(batch.result, "file") == b"in the block"
    (work / "file").write_text("after")
    session.restore(batch.result)
    assert (work / "file").read_text() == "in the block"


def test_a_batch_that_raises_takes_no_checkpoint(session: Session, work: Path) -> None:
    session.checkpoint()
    before = session.head
    (work / "file").write_text("new")
    batch = attempt(session, Failed, lambda _: session.state.set("a", 1))
    assert session.head == before
    assert batch.result is None
    with pytest.raises(StateError, match="wrote nothing"):
        _ = batch.seq
    assert session.checkpoint().coverage.files == 1  # type: ignore[union-attr]


def test_a_conflict_at_the_end_leaves_neither_state_nor_checkpoint(
    session: Session, store: Store, work: Path
) -> None:
    """The capture was made by then; the next one reads the files again."""
    (work / "file").write_text("one")
    session.state.set("n", 1)
    taken = session.checkpoint()
    other = store.session("run")
    (work / "file").write_text("two")

    def write(_: Batch) -> None:
        session.state.set("n", 2, expected=1)
        other.state.set("n", 10)

    attempt(session, Conflict, write, fails=False)
    assert session.state.get("") == {"n": 10}
    assert session.checkpoints.at("@latest") == taken
    assert session.files.read(session.checkpoint(), "file") == b"two"
    assert store.verify().problems == ()


def test_the_seq_of_a_batch_without_a_checkpoint(session: Session) -> None:
    with session.batch() as batch:
        with pytest.raises(StateError, match="has not ended"):
            _ = batch.seq
        session.state.set("a", 1)
        session.state.set("b", 1)
    assert batch.seq == session.head.seq
    assert batch.result is None


def test_a_batch_of_nothing_but_a_checkpoint(session: Session) -> None:
    with session.batch() as batch:
        batch.checkpoint("routine")
    assert batch.seq == session.head.seq == session.checkpoints()[-1].seq


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"kind": ""}, InvalidName),
        ({"label": "a:b"}, InvalidName),
        ({"note": 7}, mulligan.errors.UnstorableValue),
        ({"data": [1]}, mulligan.errors.UnstorableValue),
        ({"data": {"a": object()}}, mulligan.errors.UnstorableValue),
        ({"data": {1: "a"}}, mulligan.errors.UnstorableValue),
        ({"data": {"a": "x" * MAX_DATA}}, mulligan.errors.UnstorableValue),
    ],
)
def test_wrong_arguments_are_refused_at_once(
    session: Session, arguments: dict[str, Any], error: type[Exception]
) -> None:
    with session.batch() as batch:
        session.state.set("a", 1)
        with pytest.raises(error):
            batch.checkpoint(**arguments)
    assert batch.result is None
    assert session.state.get("a") == 1
    with pytest.raises(error):
        session.checkpoint(**arguments)


def test_one_checkpoint_for_each_batch_and_none_after_it(session: Session) -> None:
    with session.batch() as batch:
        batch.checkpoint()
        with pytest.raises(StateError, match="already"):
            batch.checkpoint()
    with pytest.raises(StateError, match="has ended"):
        batch.checkpoint()
    assert len(session.checkpoints()) == 1


def test_a_batch_inside_of_another_becomes_part_of_it(session: Session) -> None:
    before = session.head
    with session.batch() as outer:
        session.state.set("a", 1)
        with session.batch() as inner:
            session.state.set("b", session.state.get("a") + 1)
            inner.checkpoint("routine")
        assert session.head == before
        with pytest.raises(StateError, match="has not ended"):
            _ = inner.seq
        session.state.set("c", 3)
    assert inner.seq == outer.seq == session.head.seq
    assert inner.result == outer.result
    assert session.state.at(outer.seq).get() == {"a": 1, "b": 2, "c": 3}


def test_an_inner_batch_that_raises_drops_only_its_own_changes(session: Session) -> None:
    with session.batch() as outer:
        session.state.set("a", 1)
        attempt(session, Failed, lambda _: session.state.set("", {"a": 2, "b": 2}))
        assert session.state.get("") == {"a": 1}
        session.state.set("c", 3)
    assert outer.result is None
    assert session.state.get("") == {"a": 1, "c": 3}


def test_a_fenced_writer_gets_neither(tmp_path: Path, work: Path) -> None:
    store = mulligan.open(tmp_path / "store")
    old = store.agent("coder", session="run", workspace=work)
    old.checkpoint()
    new = store.agent("coder", session="run", workspace=work, steal=True)
    before = new.head
    batch = attempt(old, StaleLease, lambda _: old.state.set("a", 1), fails=False)
    assert batch.result is None
    assert new.head == before
    with new.batch() as batch:
        new.state.set("a", 2)
        batch.checkpoint()
    assert new.state.at("@latest").get() == {"a": 2}


def test_without_room_for_files_the_checkpoint_holds_the_state(
    store: Store, session: Session, work: Path
) -> None:
    (work / "large").write_bytes(os.urandom(3_000_000))
    storage = engine_of(store).storage
    storage.quota = storage.size() + 100_000
    with session.batch() as batch:
        session.state.set("a", 1)
        batch.checkpoint("routine", "step 1")
    taken = batch.result
    assert taken is not None
    assert taken.workspace is None
    assert (taken.note or "").startswith("step 1 (without files: the store has reached its quota")
    assert session.state.at(taken).get() == {"a": 1}


def test_batches_of_many_threads_each_get_their_own_checkpoint(session: Session) -> None:
    started = threading.Barrier(6)

    def work(number: int) -> tuple[int, int]:
        started.wait(60)
        for turn in range(5):
            with session.batch() as batch:
                session.state.set(("seen", str(number)), turn)
                batch.checkpoint("routine", data={"thread": number, "turn": turn})
            taken = batch.result
            assert taken is not None
            assert taken.seq == batch.seq
            assert taken.data == {"thread": number, "turn": turn}
            assert session.state.at(taken).get(("seen", str(number))) == turn
        return number, batch.seq

    with ThreadPoolExecutor(6) as pool:
        found = dict(pool.map(work, range(6)))
    assert len(set(found.values())) == 6
    assert len(session.checkpoints()) == 30


def test_a_batch_of_an_asyncio_task_takes_its_checkpoint(session: Session) -> None:
    async def beside() -> None:
        with pytest.raises(BatchOpen):
            session.checkpoint()

    async def run() -> int:
        with session.batch() as batch:
            session.state.set("a", 1)
            batch.checkpoint("routine")
            await asyncio.create_task(beside())
        return batch.seq

    assert asyncio.run(run()) == session.checkpoints()[-1].seq
    assert len(session.checkpoints()) == 1


def test_the_checkpoint_follows_the_state_that_others_wrote_meanwhile(
    session: Session, store: Store
) -> None:
    other = store.session("run")
    with session.batch() as batch:
        session.state.append("list", "mine")
        batch.checkpoint()
        other.state.append("list", "theirs")
    assert session.state.at(batch.seq).get() == {"list": ["theirs", "mine"]}
    taken = other.checkpoint()
    assert batch.result is not None
    assert taken.parent == batch.result.id


def test_a_batch_with_the_key_of_another_checkpoint_writes_nothing(session: Session) -> None:
    with session.batch() as batch:
        batch.checkpoint(key="step-1")
    assert session.checkpoints.find("step-1") == batch.result
    before = session.head

    def again() -> None:
        with session.batch() as second:
            session.state.set("a", 1)
            second.checkpoint(key="step-1")

    with pytest.raises(KeyTaken):
        again()
    assert session.head == before
    assert session.state.get("") == {}


def test_a_batch_can_take_a_checkpoint_only_if_files_changed(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    file = tmp_path / "files" / "file"
    file.write_text("1")
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=tmp_path / "files")

        def step(number: int) -> Batch:
            with session.batch() as batch:
                session.state.set("step", number)
                batch.checkpoint(if_files_changed=True)
            return batch

        first, second = step(1), step(2)
        assert first.result is not None
        assert (second.result, second.seq) == (None, session.head.seq)
        assert session.state.get("step") == 2, "the changes are written anyway"
        file.write_text("2")
        assert step(3).result is not None
        session.restore(first.result)
        assert step(4).result is not None, "the files are not those of the latest checkpoint"
        with session.batch() as empty:
            empty.checkpoint(if_files_changed=True)
        assert empty.result is None
        with pytest.raises(StateError, match="wrote nothing"):
            _ = empty.seq
