"""Whole values put again and again: little work where little changed, always the right value."""

from __future__ import annotations

import enum
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import mulligan
from mulligan import Session, Store
from mulligan.document import values
from mulligan.document.history import KEYFRAME_EVERY
from mulligan.errors import UnstorableValue
from mulligan.session.write import whole_values
from mulligan.session.write.whole_values import (
    MAX_COMPARED,
    MAX_LISTS,
    SEGMENT,
    SEGMENTS_IN_TURN,
    Segment,
    comparable,
)

SIZE = 2_000


class Frozen:
    """Counts the values that are frozen one by one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._freeze = values.freeze
        patch.setattr(whole_values, "freeze", self._counted)

    def _counted(self, *arguments: Any) -> Any:
        self.count += 1
        return self._freeze(*arguments)

    def during(self, work: Any) -> int:
        before = self.count
        work()
        return self.count - before


@pytest.fixture
def store() -> Store:
    return mulligan.open("memory:")


@pytest.fixture
def session(store: Store) -> Session:
    return store.session("run")


def messages(count: int = SIZE) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"message {n}", "n": n} for n in range(count)]


def written(session: Session, put: Any) -> list[tuple[str, Any]]:
    """Return the events that a call writes: their kinds and paths."""
    seq = session.head.seq
    put()
    return [(event.kind, event.payload.get("path")) for event in session.events(seq)]


@pytest.mark.parametrize("nested", [False, True])
def test_only_what_changed_is_looked_at_closely(
    session: Session, monkeypatch: pytest.MonkeyPatch, nested: bool
) -> None:
    log, frozen = messages(), Frozen(monkeypatch)
    base: list[Any] = ["log"] if not nested else ["box", "inner", "log"]

    def put() -> None:
        value = log if not nested else {"inner": {"log": log, "other": 1}}
        session.state.put("box" if nested else "log", value)

    put()
    log.append({"role": "user", "content": "one more"})
    assert written(session, put) == [("state.append", base)]
    log[700]["content"] = "changed in place"
    log[5]["n"] = True
    assert frozen.during(put) <= 4
    assert session.state.get(tuple(base)) == log
    assert session.state.get((*base, 5, "n")) is True
    del log[-2:]
    assert written(session, put) == [
        ("state.delete", [*base, SIZE]),
        ("state.delete", [*base, SIZE - 1]),
    ]
    log[-1] = {"role": "user", "content": "instead"}
    log.append({"role": "user", "content": "and more"})
    assert [kind for kind, _ in written(session, put)][-1] == "state.append"
    assert written(session, put) == []
    assert session.state.get(tuple(base)) == log


LONG = 3 * MAX_COMPARED


@pytest.mark.parametrize("plain", [True, False])
def test_of_a_long_list_few_items_are_compared_by_content(
    session: Session, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    """All others are only looked at whether they are the same objects."""
    log = [{"content": f"message {n}"} | ({} if plain else {"n": n}) for n in range(LONG)]
    session.state.put("log", log)
    compared: list[int] = []
    has_content = Segment.has_content

    def counted(segment: Segment, part: list[Any]) -> bool:
        compared.append(len(part))
        return has_content(segment, part)

    monkeypatch.setattr(Segment, "has_content", counted)
    for given in (log, list(log), [*log, {"content": "one more"}]):
        compared.clear()
        session.state.put("log", given)
        assert sum(compared) <= MAX_COMPARED + SEGMENT
    assert session.state.get("log") == given


def test_in_a_list_that_is_not_too_long_every_change_in_place_is_found_at_once(
    session: Session,
) -> None:
    log = messages(MAX_COMPARED)
    session.state.put("log", log)
    for index in range(0, MAX_COMPARED, SEGMENT // 2):
        log[index]["content"] = "changed in place"
        session.state.put("log", log)
        assert session.state.get(("log", index)) == log[index]


def test_a_change_in_place_far_back_in_a_long_list_is_found_in_its_turn(session: Session) -> None:
    log = messages(LONG)
    session.state.put("log", log)
    log[LONG - SEGMENT]["content"] = "changed in place, among the last"
    session.state.put("log", log)
    assert session.state.get(("log", LONG - SEGMENT)) == log[LONG - SEGMENT]
    for index in range(0, LONG, SEGMENT):
        log[index]["content"] = "changed in place"
    for number in range(LONG // (SEGMENTS_IN_TURN * SEGMENT)):
        log.append({"content": f"more {number}"})
        session.state.put("log", log)
    assert session.state.get("log") == log


@pytest.mark.parametrize("plain", [True, False])
def test_other_objects_anywhere_in_a_long_list_are_found_at_once(
    session: Session, plain: bool
) -> None:
    log: list[Any] = [{"content": f"{n}"} if plain else {"n": n} for n in range(LONG)]
    session.state.put("log", log)
    for index in range(1, LONG, SEGMENT + 1):
        log[index] = {"content": "instead"}
        session.state.put("log", log)
        assert session.state.get(("log", index)) == log[index]
    session.state.put("log", [dict(item) for item in log])
    log[3] = {"n": 1}
    session.state.put("log", log)
    log[3] = {"n": True}
    session.state.put("log", log)
    assert session.state.get("log/3/n") is True


def test_a_copy_in_the_place_of_an_object_that_was_changed_in_place_is_found_at_once(
    session: Session,
) -> None:
    """The copy equals the remembered object as it is now, but not what was put."""
    log = [{"content": f"message {n}"} for n in range(LONG)]
    session.state.put("log", log)
    for index in range(1, LONG, SEGMENT):
        log[index]["content"] = "changed in place"
        log[index] = dict(log[index])
    session.state.put("log", log)
    assert session.state.get("log") == log


def test_a_change_in_place_among_the_last_of_a_list_that_shrank_is_found_at_once(
    session: Session,
) -> None:
    log = messages(2 * LONG)
    session.state.put("log", log)
    session.state.put("log", log)
    for count in (LONG + 10, LONG - SEGMENT):
        del log[count:]
        for index in range(count - SEGMENT, count, 7):
            log[index]["content"] = f"changed in place at {count}"
        session.state.put("log", log)
        assert session.state.get("log") == log


def test_a_long_list_that_shrank_and_grew_again(session: Session) -> None:
    log = messages(LONG)
    for count in (LONG, SEGMENT + 3, SEGMENT, 100, LONG - 1, 2 * SEGMENT):
        session.state.put("log", log[:count])
        assert session.state.get("log") == log[:count]


def test_an_insertion_stores_what_comes_after_it_and_no_more(session: Session) -> None:
    log = messages()
    session.state.put("log", log)
    log.insert(SIZE - 100, {"role": "system", "content": "inserted"})
    assert written(session, lambda: session.state.put("log", log)) == [("state.set", ["log"])]
    assert session.state.get("log") == log


def test_what_another_handle_wrote_is_noticed(store: Store, session: Session) -> None:
    log = messages()
    session.state.put("log", log)
    other = store.session("run")
    other.state.set("log/3", "not yours")
    session.state.put("log", log)
    assert other.state.get("log") == log
    other.state.pop("log")
    session.state.put("log", log)
    assert other.state.get("log") == log
    other.state.delete("log")
    log.append({"role": "user", "content": "again"})
    session.state.put("log", log)
    assert other.state.get("log") == log


def test_a_restore_and_a_failed_batch_are_noticed(session: Session) -> None:
    log = messages(200)
    session.state.put("log", log)
    point = session.checkpoint()
    log.append({"role": "user", "content": "more"})
    session.state.put("log", log)
    session.restore(point)
    session.state.put("log", log)
    assert session.state.get("log") == log
    log.append({"role": "user", "content": "in a batch"})
    with suppress(RuntimeError), session.batch():
        session.state.put("log", log)
        raise RuntimeError
    assert session.state.length("log") == 201
    session.state.put("log", log)
    assert session.state.get("log") == log
    with session.batch():
        session.state.put("log", log[:100])
        log.append({"role": "user", "content": "after the call"})
    assert session.state.get("log") == log[:100]


def test_it_goes_on_over_keyframes(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    log, frozen = messages(300), Frozen(monkeypatch)
    session.state.put("log", log)
    before = frozen.count
    for number in range(KEYFRAME_EVERY + 20):
        log.append({"role": "user", "content": f"more {number}"})
        session.state.put("log", log)
    assert frozen.count - before == KEYFRAME_EVERY + 20
    kinds = {event.kind for event in session.events(3)}
    assert kinds == {"state.append"}
    assert session.state.get("log") == log


def test_a_transaction_remembers_as_well(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    log, frozen = messages(300), Frozen(monkeypatch)
    session.state.transaction(lambda state: state.put("log", log))
    log.append({"role": "user", "content": "more"})
    assert frozen.during(lambda: session.state.transaction(lambda s: s.put("log", log))) <= 2
    with suppress(RuntimeError):
        session.state.transaction(lambda state: _put_and_fail(state, [*log, "lost"]))
    session.state.put("log", log)
    assert session.state.get("log") == log


def _put_and_fail(state: mulligan.State, value: list[Any]) -> None:
    state.put("log", value)
    raise RuntimeError


PAIRS = [
    (1, True),
    (1, 1.0),
    (0, False),
    (0.0, -0.0),
    (2**70, float(2**70)),
    (
        datetime(2026, 1, 1, 10, tzinfo=UTC),
        datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2))),
    ),
    (None, False),
    ("1", 1),
    (b"a", "a"),
    ([1], [True]),
    ({"a": [0]}, {"a": [False]}),
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_values_that_python_calls_equal_are_told_apart(
    session: Session, one: Any, other: Any
) -> None:
    for before, after in ((one, other), (other, one)):
        session.state.put("log", [before] * 100)
        session.state.put("log", [before] * 50 + [after] + [before] * 49)
        assert repr(session.state.get("log/50")) == repr(after)
        assert repr(session.state.get("log/51")) == repr(before)


@pytest.mark.parametrize(
    "value", [None, "a", b"a", 1, True, 2.5, 2**80, datetime(2026, 1, 1, tzinfo=UTC), {"a": [1]}]
)
def test_equal_values_are_recognised(value: Any) -> None:
    assert comparable(values.freeze(value)) == value


class Colour(str, enum.Enum):  # noqa: UP042 - its text is "Colour.RED", unlike that of a StrEnum
    RED = "red"


class Odd:
    """An object that cannot be compared, as an array."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    __hash__ = object.__hash__


def test_texts_of_a_subclass_are_their_content(session: Session) -> None:
    session.state.put("log", ["red"] * 100)
    session.state.put("log", [Colour.RED] * 101)
    assert session.state.get("log") == ["red"] * 101
    session.state.set("one", {Colour.RED: Colour.RED})
    assert session.state.get("one") == {"red": "red"}


def test_what_cannot_be_stored_is_refused_with_its_place(session: Session) -> None:
    log: list[Any] = ["a"] * 100
    session.state.put("log", log)
    for wrong in (Odd(), (1, 2), {1: "a"}, object(), "\ud800"):
        with pytest.raises(UnstorableValue, match="log/70"):
            session.state.put("log", [*log[:70], wrong, *log[71:]])
    with pytest.raises(UnstorableValue):
        session.state.put("", {"log": log, 1: 2})
    assert session.state.get("log") == log


def test_little_is_remembered(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(MAX_LISTS + 5):
        session.state.put(("logs", str(number)), messages(100))
    puts = session.state._puts
    assert puts is not None
    assert len(puts._known) == MAX_LISTS
    monkeypatch.setattr(whole_values, "MAX_BYTES", 20_000)
    session.state.put("log", messages(200))
    assert sum(value.size for value, _ in puts._known.values()) <= 20_000
    log = messages(1_000)
    session.state.put("log", log)
    assert ("log",) not in puts._known
    session.state.put("log", [*log, "more"])
    assert session.state.get("log") == [*log, "more"]


def test_the_remembered_bytes_follow_the_list(session: Session) -> None:
    log = messages(300)
    for _ in range(3):
        session.state.put("log", log)
        log[7] = {"content": "x" * 5_000}
        session.state.put("log", log)
        del log[100:]
        session.state.put("log", log)
        log += messages(50)
    session.state.put("log", log)
    assert session.state._puts is not None
    (put, _), *_ = session.state._puts._known.values()
    assert put.size == sum(len(whole_values.codec.encode(item)) for item in put.items())


def test_what_is_remembered_may_be_replaced_by_another_thread_at_any_moment() -> None:
    known = whole_values.WholeValues()
    lists: dict[Any, whole_values.PutList] = {}

    class Interrupted(whole_values.PutList):
        """Another thread puts lists just when the size of this one is looked at."""

        @property
        def size(self) -> int:  # type: ignore[override]
            if lists:
                put = dict([lists.popitem(), lists.popitem()])
                known.remember(put, [None, None])
            return 0

        @size.setter
        def size(self, size: int) -> None: ...

    interrupted = Interrupted([1], ("c",), None, None)
    lists |= {(name,): whole_values.PutList([1], (name,), None, None) for name in "ab"}
    known.remember({("c",): interrupted}, [None])
    assert not lists
    assert ("c",) in known._known
