"""References from lists to pending writes: what a task wrote is stored once.

Nearly every new item of a list was a pending write before. Then the list has a reference in its
place, ``[call, write, item]``: the position of the call that saved it, of the write in the call,
and of the item in the list that was written, or -1 if the write itself is the item. Both are in the
state, so at every point of the timeline a list and what it refers to are there together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from mulligan.integrations.langgraph.changes import StateChanges
from mulligan.integrations.langgraph.layout import WRITES
from mulligan.integrations.langgraph.values import ITEMS

MIN_BYTES = 64
"""Smaller items are stored again: a reference would not be much smaller."""

MAX_RECENT = 1_024
"""How many recently written items new ones are compared with."""


class RecentWrites:
    """Where the last written items are."""

    def __init__(self) -> None:
        self._places: OrderedDict[bytes, list[int]] = OrderedDict()
        self._added: dict[bytes, list[int]] = {}

    def begin(self) -> None:
        """Begin a transaction: the state has what is added from here on, and needs no look."""
        self._added = {}

    def add(self, call: int, writes: list[list[Any]]) -> None:
        """Remember the items of the writes that a call saved."""
        for number, (_, _, stored) in enumerate(writes):
            items = enumerate(stored[ITEMS]) if type(stored) is dict else ((-1, stored),)
            for index, item in items:
                if type(item) is bytes and len(item) >= MIN_BYTES:
                    self._places[item] = self._added[item] = [call, number, index]
        while len(self._places) > MAX_RECENT:
            self._places.popitem(last=False)

    def referred(self, items: list[Any], state: StateChanges) -> list[Any]:
        """Return items as a list stores them: those that were written before as references."""
        return [self._referred(item, state) if type(item) is bytes else item for item in items]

    def _referred(self, item: bytes, state: StateChanges) -> Any:
        if item in self._added:
            return self._added[item]
        place = self._places.get(item)
        # Compared: after a restore of the state, another write may be in that place.
        return item if place is None or state.get(_path(*place)) != item else place


def _path(call: int, number: int, index: int) -> tuple[str | int, ...]:
    write = (*WRITES, call, 4, number, 2)
    return write if index < 0 else (*write, ITEMS, index)


def resolved(items: list[Any], read: Callable[[int, int], list[Any]]) -> list[Any]:
    """Return items with the values that their references refer to.

    ``read(first, last)`` returns the calls that saved pending writes, from one to the other.
    """
    called = [item[0] for item in items if is_reference(item)]
    if not called:
        return items
    first = min(called)
    calls = read(first, max(called))
    return [_value(calls, first, item) if is_reference(item) else item for item in items]


def is_reference(item: Any) -> bool:
    """Whether an item of a stored list refers to a pending write."""
    return type(item) is list and type(item[0]) is int


def _value(calls: list[Any], first: int, reference: list[int]) -> Any:
    call, number, index = reference
    stored = calls[call - first][4][number][2]
    return stored if index < 0 else stored[ITEMS][index]
