"""``session.checkpoints``: what was taken, in one place."""

from __future__ import annotations

import asyncio

import pytest

import mulligan
from mulligan import PinnedBy, Session, aio
from mulligan.errors import InvalidMark, UnknownPoint


@pytest.fixture
def session() -> Session:
    return mulligan.open("memory:").session("run", actor="tester")


def test_calling_it_lists_them(session: Session) -> None:
    taken = [session.checkpoint(), session.checkpoint("mine"), session.checkpoint()]
    assert session.checkpoints() == taken
    assert session.checkpoints(2) == taken[1:]
    assert session.checkpoints(kind="mine") == [taken[1]]
    assert session.checkpoints(reverse=True, limit=1) == [taken[2]]


def test_one_is_found_by_point_by_key_and_by_label(session: Session) -> None:
    taken = session.checkpoint(label="start", key="step-1")
    session.state.set("a", 1)
    assert session.checkpoints.at(session.head) == taken
    assert session.checkpoints.at("start") == session.checkpoints.find("step-1") == taken
    assert session.checkpoints.find("step-2") is None
    with pytest.raises(UnknownPoint):
        session.checkpoints.at("nothing")


def test_a_pinned_one_says_by_whom_and_why(session: Session) -> None:
    first, second = session.checkpoint(), session.checkpoint()
    assert session.checkpoints.pin(first, "the start") == first
    assert session.checkpoints.pin("@latest") == second
    assert session.checkpoints.pinned() == {
        first.id: PinnedBy("tester", "the start"),
        second.id: PinnedBy("tester", None),
    }
    assert session.checkpoints.unpin(first) == first
    head = session.head
    assert session.checkpoints.unpin(first) == first  # it was not pinned any more
    assert session.head == head
    assert list(session.checkpoints.pinned()) == [second.id]


def test_a_pin_that_cannot_be_meant_is_refused(session: Session) -> None:
    other = session.fork(session.checkpoint(), "other")
    elsewhere = other.checkpoint()
    head = session.head
    with pytest.raises(UnknownPoint, match="not on the timeline") as refused:
        session.checkpoints.pin(elsewhere)
    assert "'other'" in (refused.value.hint or "")
    with pytest.raises(InvalidMark):
        session.checkpoints.pin(session.checkpoints()[0], 5)  # type: ignore[arg-type]
    assert session.head == head


def test_the_same_calls_can_be_awaited() -> None:
    async def work() -> None:
        store = await aio.open("memory:")
        session = await store.session("run")
        taken = await session.checkpoint(key="one")
        assert await session.checkpoints() == [taken]
        assert await session.checkpoints.at("@latest") == taken
        assert await session.checkpoints.find("one") == taken
        await session.checkpoints.pin(taken)
        assert list(await session.checkpoints.pinned()) == [taken.id]
        await session.checkpoints.unpin(taken)
        assert await session.checkpoints.pinned() == {}
        await session.close()
        await store.close()

    asyncio.run(work())
