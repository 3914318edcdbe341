"""Objects of programs become plain values and come back, without pickle."""

from __future__ import annotations

import enum
import os
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID

import pytest

import mulligan
from mulligan.errors import UnstorableValue
from mulligan.integrations.typed_values import TAG, TypedValues

HERE = __name__


class Colour(enum.Enum):
    RED = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Level(enum.StrEnum):
    HIGH = "high"


@dataclass(frozen=True)
class Frozen:
    number: int
    inside: Any = None


@dataclass(slots=True)
class Slotted:
    items: list[Any] = field(default_factory=list)


class Plain:
    """Its constructor is not called when it is read."""

    def __init__(self, required: int) -> None:
        self.required = required
        self.__private = required + 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class PrivateSlots:
    __slots__ = ("__secret", "missing")

    def __init__(self) -> None:
        self.__secret = 7

    def secret(self) -> int:
        return self.__secret


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = "inside"
    for _ in range(depth):
        value = wrap(value)
    return value


Pair = namedtuple("Pair", "a b")

VALUES: list[Any] = [
    None, True, 1, 1.5, "text", b"bytes", 2**80, -(2**70), 1 + 2j, [1, [2]], {"a": {"b": 1}},
    (1, (2,)), {1, 2}, frozenset({"a"}), deque([1, 2]), bytearray(b"xy"), {1: "a", "1": "b"},
    {TAG: "not a tag of ours"}, {(1, 2): None}, OrderedDict(a=1), Counter("hello"),
    datetime(2026, 1, 2, 3, 4, 5, 6, UTC), date(2026, 1, 2), time(1, 2, 3), timedelta(1, 2, 3),
    timezone(timedelta(hours=2)), Decimal("1.10"), UUID(int=5), Colour.RED, Level.HIGH, int, Frozen,
    Frozen(1, Frozen(2)), Slotted([Frozen(3)]), Plain(4), Pair(1, Colour.RED),
    7**9000, -(7**9000), "half \ud83d", ["\udc80"], {"\udc80": 1}, {"long" * 1000: 1}, {"": ""},
    nested(150, lambda v: [v]), nested(150, lambda v: {"v": v}), nested(70, lambda v: Frozen(1, v)),
    Path("a/b"), Path(os.fsdecode(b"\xff")), PurePosixPath("/"), PureWindowsPath(r"c:\d"),
    nested(70, lambda v: {1: v}), nested(70, lambda v: (v,)),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_through_the_state(value: Any) -> None:
    values = TypedValues()
    with mulligan.open("memory:") as store:
        state = store.session("s").state
        state.set("value", values.to_plain(value))
        found = values.from_plain(state.get("value"))
    assert found == value
    assert type(found) is type(value)


def test_the_order_of_a_dictionary_comes_back() -> None:
    """The state sorts keys, and a program may depend on their order."""
    value = {"b": {"d": 1, "c": 2}, "a": [{"z": 1, "y": 2}]}
    values = TypedValues(keeps_order=True)
    with mulligan.open("memory:") as store:
        state = store.session("s").state
        state.set("value", values.to_plain(value))
        found = values.from_plain(state.get("value"))
    assert repr(found) == repr(value)
    assert values.to_plain({"a": 1, "b": {"c": 2, "d": 3}}) == {"a": 1, "b": {"c": 2, "d": 3}}


def test_slots_with_private_names_come_back() -> None:
    values = TypedValues()
    assert values.from_plain(values.to_plain(PrivateSlots())).secret() == 7


def test_errors_and_defaults_come_back() -> None:
    values = TypedValues()
    error = values.from_plain(values.to_plain(ValueError("a", 1)))
    assert (type(error), error.args) == (ValueError, ("a", 1))
    found = values.from_plain(values.to_plain(defaultdict(list, a=[1])))
    assert (found["a"], found["missing"]) == ([1], [])


def test_plain_values_stay_as_they_are() -> None:
    plain = {"messages": [{"role": "user", "text": "hello"}], "n": 1}
    assert TypedValues().to_plain(plain) == plain


def itself() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


@pytest.mark.parametrize(
    "value",
    [
        lambda: None,
        open,
        itself(),
        Fraction(1, 2),
        iter([]),
        Access.READ | Access.WRITE,
        nested(5000, lambda v: [v]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_more_than_its_attributes_is_refused(value: Any) -> None:
    with pytest.raises(UnstorableValue):
        TypedValues().to_plain(value)


def test_a_class_inside_of_a_function_is_refused_when_it_is_stored() -> None:
    @dataclass
    class Local:
        pass

    with pytest.raises(UnstorableValue, match="local to a function"):
        TypedValues().to_plain(Local())


def test_only_allowed_classes_are_read() -> None:
    stored = TypedValues().to_plain(Frozen(1))
    with pytest.raises(UnstorableValue, match="not allowed"):
        TypedValues(allowed=[]).from_plain(stored)
    assert TypedValues(allowed=[f"{HERE}:Frozen"]).from_plain(stored) == Frozen(1)
    assert TypedValues(allowed=[], trusted=(HERE,)).from_plain(stored) == Frozen(1)


@pytest.mark.parametrize(
    "evil",
    [
        {TAG: "object", "type": "subprocess:Popen", "attributes": {"args": "x"}},
        {TAG: "object", "type": "os:system", "attributes": {}},
        {TAG: "object", "type": "builtins:eval", "attributes": {}},
        {TAG: "object", "type": "builtins:type", "attributes": {}},
        {TAG: "object", "type": "not.loaded.anywhere:X", "attributes": {}},
        {TAG: "enum", "type": f"{HERE}:Frozen", "name": "x"},
        {TAG: "error", "type": f"{HERE}:Frozen", "args": [], "attributes": {}},
        {TAG: "unknown"},
    ],
    ids=lambda value: value.get("type", "unknown"),
)
def test_a_forged_value_calls_nothing(evil: dict[str, Any]) -> None:
    assert subprocess.Popen.__module__ == "subprocess"  # its module is loaded
    with pytest.raises(UnstorableValue):
        TypedValues().from_plain(evil)


def test_a_value_that_nests_too_deep_to_be_read_is_refused_as_such() -> None:
    plain: Any = []
    for _ in range(sys.getrecursionlimit()):
        plain = [plain]
    with pytest.raises(UnstorableValue, match="too deep to be read"):
        TypedValues().from_plain(plain)
