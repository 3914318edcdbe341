"""Lists that grow, item by item: which items of a list the store has already.

LangGraph hands over whole lists at every step. Most items are the very objects that were stored
or loaded before, so they are compared by identity, and only new ones are serialized. An object may
have been changed in place since: the last items, and in turn all others, are serialized again and
compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import compress, count
from operator import is_, is_not
from typing import Any, NamedTuple

from mulligan.integrations.langgraph.values import ValueCodec

RECENT = 2
"""How many items before the new ones are always compared by value."""

IN_TURN = 4
"""How many of the other items are compared by value at each step."""

MAX_SETS = 32
"""Up to this many changed items are replaced one by one."""


class KnownList(NamedTuple):
    """A list as it was stored: its objects, and what the store has for each.

    ``next_check`` is the position of the older item that is compared by value next.
    """

    items: list[Any]
    stored: list[Any]
    next_check: int = 0

    def unchanged(self) -> ListChange:
        """Return the change to the same list."""
        count = len(self.stored)
        return ListChange(count, {}, [], count)


class ListChange(NamedTuple):
    """How to make a stored list equal to another: shorten, replace, append."""

    keep: int
    replaced: dict[int, Any]
    added: list[Any]
    same: int
    """How many items at the beginning are as they were."""

    @property
    def length(self) -> int:
        """The length of the list afterwards."""
        return self.keep + len(self.added)


def list_change(known: KnownList, items: list[Any], codec: ValueCodec) -> ListChange:
    """Return what changed since a list was stored."""
    same = _identical(known.items, items)
    changed = {
        index: codec.encode(items[index])
        for index in _to_check(known, same)
        if not codec.is_unchanged(items[index], known.stored[index])
    }
    rest = [codec.encode(item) for item in items[same:]]
    later = known.stored[same:]
    # Where an item was exchanged, those after it are often the same again.
    differing = [i for i, (new, old) in enumerate(zip(rest, later, strict=False)) if new != old]
    if len(differing) > MAX_SETS:
        keep, differing = same + differing[0], []
    else:
        keep = same + min(len(rest), len(later))
    replaced = changed | {same + i: rest[i] for i in differing}
    first = min(replaced, default=keep)
    return ListChange(keep, replaced, rest[keep - same :], min(first, keep))


def after(known: KnownList, items: list[Any], change: ListChange) -> KnownList:
    """Return the list as it is stored after a change; the one before cannot be used any more."""
    stored = known.stored
    del stored[change.keep :]
    for index, value in change.replaced.items():
        stored[index] = value
    stored += change.added
    checked = known.next_check + IN_TURN
    return KnownList(list(items), stored, checked if checked < len(stored) - RECENT else 0)


def _identical(known: list[Any], items: list[Any]) -> int:
    """Return how many items at the beginning of both lists are the same objects."""
    if all(map(is_, known, items)):
        return min(len(known), len(items))
    return next(compress(count(), map(is_not, known, items)), min(len(known), len(items)))


def _to_check(known: KnownList, same: int) -> Iterable[int]:
    """Return the positions to compare by value, of the first ``same`` ones."""
    older = max(same - RECENT, 0)
    return (*range(known.next_check, min(known.next_check + IN_TURN, older)), *range(older, same))
