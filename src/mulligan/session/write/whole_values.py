"""Whole values that a program passes at every step: only what changed is looked at closely.

A handle remembers the long lists that it put last: the program's objects, and a private copy of
each. Most items of the next list are the same objects, which a comparison in C finds out. Items
that are other objects are compared with the copy, and only those that differ are checked, copied
and encoded.

The same object may have been changed in place since. So the last items, and in turn all others, are
compared with the copy as well. In a list of up to ``MAX_COMPARED`` items these are all of them. In
a longer one, a change in place of an older item is found some puts later.

What is remembered counts only while the document has, at that path, what the last put left there;
otherwise the whole list is compared with the document, as a handle does that remembers nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from itertools import chain
from operator import is_
from typing import Any

import msgspec

from mulligan import codec
from mulligan.document import nodes
from mulligan.document.compare import derive, same, splice
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import STATE, Change
from mulligan.document.values import freeze, frozen_entries
from mulligan.errors import InvalidPath
from mulligan.model import Path
from mulligan.session.write.decisions import Changes, Decision, checked_place

MAX_LISTS = 16
"""How many lists a handle remembers."""

SEGMENT = 512
"""How many items are compared at a time."""

LAST_SEGMENTS = 2
"""How many segments at the end of a list are always compared by content."""

SEGMENTS_IN_TURN = 2
"""How many of the other segments are compared by content at each put."""

MAX_COMPARED = (LAST_SEGMENTS + SEGMENTS_IN_TURN) * SEGMENT
"""Up to this many items, all of them are compared by content."""

MAX_NESTING = 4
"""How deep in the dictionaries of a value lists are remembered."""

MAX_BYTES = 64 << 20
"""How many bytes, encoded, the lists have that a handle remembers."""


class Exact:
    """Equals an integer or a boolean of the same type; to Python, 1, 1.0 and True are equal."""

    __slots__ = ("kind", "value")

    def __init__(self, value: Any) -> None:
        self.kind = type(value)
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is self.kind and bool(other == self.value)

    __hash__ = None  # type: ignore[assignment]


class ExactEncoding(Exact):
    """Equals a value of the same encoding: 0.0 is not -0.0, and a time in another zone differs."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is float or isinstance(other, int | datetime):
            return bool(codec.encode(freeze(other)) == self.value)
        return False


def comparable(frozen: Any) -> Any:
    """Return a value that equals plain values of the same content and types, and no others.

    It is the frozen value itself where Python's comparison is exact.
    """
    kind = type(frozen)
    if kind is str or kind is bytes or frozen is None:
        return frozen
    if kind is dict:
        entries = {key: comparable(value) for key, value in frozen.items()}
        return frozen if all(entries[key] is frozen[key] for key in frozen) else entries
    if kind is list:
        items = [comparable(value) for value in frozen]
        return frozen if all(map(is_, items, frozen)) else items
    if kind is int or kind is bool:
        return Exact(frozen)
    if kind is float or kind is msgspec.msgpack.Ext:
        return ExactEncoding(codec.encode(frozen))
    return frozen  # a branch of a large container equals nothing, so it is compared by its digest


class Segment:
    """A part of a list that was put: the program's objects, and a private copy of each.

    Never changed, only replaced: the next list shares those that are the same.
    """

    __slots__ = ("comparable", "is_flat", "items", "objects", "size")

    def __init__(self, objects: list[Any], items: list[Any], comparable: list[Any], size: int):
        self.objects = objects
        self.items = items
        self.comparable = comparable
        self.size = size
        # Then none of these objects can change, and Python's comparison of them is exact.
        self.is_flat = {*map(type, objects)} <= _FLAT

    def has_objects(self, part: list[Any]) -> bool:
        """Whether these are the same objects; some may have been changed in place since."""
        mine = self.objects
        if len(mine) != len(part) or mine[0] is not part[0] or mine[-1] is not part[-1]:
            return False
        # Not by `==` for others: an object that was changed in place, and then replaced by a copy,
        # equals that copy, but not what was put. Only for texts is the quicker comparison as good.
        return _is_equal(mine, part) if self.is_flat else all(map(is_, mine, part))

    def has_content(self, part: list[Any]) -> bool:
        """Whether these items have the same content as when they were put."""
        return len(self.items) == len(part) and _is_equal(self.comparable, part)

    def differing(self, part: list[Any]) -> list[int]:
        """Return the indexes of the items that differ, as far as both go."""
        count = min(len(self.items), len(part))
        if _is_equal(self.comparable[:count], part[:count]):
            return []
        pairs = zip(self.comparable, part, strict=False)
        return [index for index, pair in enumerate(pairs) if not _is_equal(*pair)]

    def replaced(self, part: list[Any], path: Path, start: int, apart: list[int]) -> Segment:
        """Return the segment of other items at the same place, of which those ``apart`` differ."""
        items, comparables = self.items[: len(part)], self.comparable[: len(part)]
        size = self.size - _size(self.items[len(part) :]) - _size([items[i] for i in apart])
        added = list(range(len(items), len(part)))
        items += [None] * len(added)
        comparables += [None] * len(added)
        for index in apart + added:
            items[index] = freeze(part[index], (*path, start + index))
            comparables[index] = comparable(items[index])
        size += _size([items[index] for index in apart + added])
        return Segment(part, items, comparables, size)


_FLAT = {str, bytes, type(None)}

_EMPTY = Segment([], [], [], 0)


class PutList:
    """A long list that was put: a private copy of its items, and how it differs from the last.

    ``known`` is what the document had at its path after the last put, ``apart`` are the indexes of
    the items that differ from that. ``turn`` is the segment that is compared by content next.
    """

    __slots__ = ("apart", "count", "known", "known_count", "segments", "size", "turn")

    def __init__(self, value: list[Any], path: Path, last: PutList | None, known: Any) -> None:
        self.known = MISSING if last is None else known
        self.known_count = 0 if last is None else last.count
        self.count: int = len(value)
        self.apart: list[int] = []
        before = [] if last is None else last.segments
        segments = range((self.count + SEGMENT - 1) // SEGMENT)
        # The last of those that are left: a list may have become shorter, too.
        closely = self._closely(min(len(before), len(segments)), 0 if last is None else last.turn)
        self.segments: list[Segment] = [
            self._segment(value, path, number, before, closely) for number in segments
        ]
        self.size = sum(segment.size for segment in self.segments)

    def _closely(self, count: int, turn: int) -> set[int]:
        """Return which of the last put's segments are compared by content; turn to the next."""
        older = max(count - LAST_SEGMENTS, 0)
        following = turn + SEGMENTS_IN_TURN
        self.turn = following if following < older else 0
        return {*range(turn, turn + SEGMENTS_IN_TURN), *range(older, count)}

    def _segment(
        self, value: list[Any], path: Path, number: int, before: list[Segment], closely: set[int]
    ) -> Segment:
        start = number * SEGMENT
        part = value[start : start + SEGMENT]
        last = before[number] if number < len(before) else _EMPTY
        if number not in closely and last.has_objects(part):
            return last
        if last.has_content(part):
            return Segment(part, last.items, last.comparable, last.size)
        apart = last.differing(part)
        self.apart += [start + index for index in apart]
        return last.replaced(part, path, start, apart)

    def items(self, start: int = 0) -> list[Any]:
        """Return the private copies of the items from ``start`` on."""
        first = start // SEGMENT
        items = list(chain.from_iterable(part.items for part in self.segments[first:]))
        return items[start - first * SEGMENT :]

    def frozen(self) -> Any:
        """Return the list as a frozen value."""
        return nodes.build_list(self.items())

    def changes(self, document: Document, before: Any, path: Path) -> Iterator[Change]:
        """Yield the changes that turn the present value into the list."""
        if self.known is MISSING or not (before is self.known or same(before, self.known)):
            yield from derive(document, before, self.frozen(), path)
            return
        start = min([*self.apart[:1], self.known_count, self.count])
        if start < self.count or start < self.known_count:
            old = document.resolved(before)
            yield from splice(document, old, path, start, self.items(start), self.apart)


def _size(items: list[Any]) -> int:
    return sum(len(codec.encode(item)) for item in items)


def _is_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:
        # An object of another library may refuse to be compared; freezing it says what is wrong.
        return False


class PutDict:
    """A dictionary that was put, with long lists in it."""

    __slots__ = ("entries",)

    def __init__(self, entries: dict[str, Any]) -> None:
        self.entries = entries

    def frozen(self) -> Any:
        """Return the dictionary as a frozen value."""
        return nodes.build_map({key: frozen_value(part) for key, part in self.entries.items()})

    def changes(self, document: Document, before: Any, path: Path) -> Iterator[Change]:
        """Yield the changes that turn the present value into the dictionary."""
        old = before if before is MISSING else document.resolved(before)
        if not nodes.is_map(old):
            yield from derive(document, before, self.frozen(), path)
            return
        present = document.entries(old)
        for key in sorted(present.keys() | self.entries.keys()):
            part = self.entries.get(key, MISSING)
            yield from whole_changes(document, present.get(key, MISSING), part, (*path, key))


def frozen_value(value: Any) -> Any:
    """Return a prepared value as a frozen one."""
    return value.frozen() if isinstance(value, PutList | PutDict) else value


def whole_changes(document: Document, before: Any, value: Any, path: Path) -> Iterator[Change]:
    """Yield the changes that turn the present value into a prepared one."""
    if isinstance(value, PutList | PutDict):
        return value.changes(document, before, path)
    return derive(document, before, value, path)


def put_lists(value: Any, path: Path) -> dict[Path, PutList]:
    """Return the long lists in a prepared value by their paths."""
    if isinstance(value, PutList):
        return {path: value}
    if not isinstance(value, PutDict):
        return {}
    parts = [put_lists(part, (*path, key)) for key, part in value.entries.items()]
    return {place: found for part in parts for place, found in part.items()}


class WholeValues:
    """Prepares values to be put, and remembers the long lists among them."""

    def __init__(self) -> None:
        # Never changed, only replaced: several threads may use the handle.
        self._known: dict[Path, tuple[PutList, Any]] = {}

    def prepared(self, value: Any, path: Path, depth: int = 0) -> Any:
        """Return a value that is checked and private, or raise ``UnstorableValue``."""
        if type(value) is list and len(value) > nodes.FAN:
            return PutList(value, path, *self._known.get(path, (None, MISSING)))
        if type(value) is not dict or len(value) > nodes.FAN or depth == MAX_NESTING:
            return freeze(value, path)
        entries = frozen_entries(value, path, partial(self.prepared, depth=depth + 1))
        is_plain = not any(isinstance(part, PutList | PutDict) for part in entries.values())
        return entries if is_plain else PutDict(entries)

    def remember(self, put: dict[Path, PutList], found: list[Any]) -> None:
        """Remember lists that were put, with what the document has at their paths since."""
        # The newest last: those that were put longest ago are dropped first.
        known = {path: last for path, last in self._known.items() if path not in put}
        known |= dict(zip(put, zip(put.values(), found, strict=True), strict=True))
        size = sum(value.size for value, _ in known.values())
        for path, (value, _) in list(known.items()):
            if len(known) <= MAX_LISTS and size <= MAX_BYTES:
                break
            del known[path]
            size -= value.size
        self._known = known


def put_change(path: Path, value: Any, expected: Any) -> Decision[list[Any]]:
    """Set a prepared whole value by the changes that turn the present one into it.

    Returns what the document has then at the paths of the value's long lists.
    """
    lists = [(*STATE, *place) for place in put_lists(value, path)]

    def decide(work: Changes) -> list[Any]:
        document = work.document
        place = checked_place(document, path, expected)
        if not path and not isinstance(value, PutDict) and not nodes.is_map(value):
            raise InvalidPath("The root of the state is a dictionary and stays one.")
        before = document.find((*STATE, *place))
        for change in whole_changes(document, before, value, tuple(place)):
            work.add(change)
        return [work.document.find(found) for found in lists]

    return decide
