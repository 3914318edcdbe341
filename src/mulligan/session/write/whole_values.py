"""Whole values that a program passes at every step: only what changed is looked at closely.

A handle remembers the long lists that it put last, in a private copy. The next put compares the
program's list with that copy, item by item, which is quick where nothing changed: texts are mostly
the same objects. Only items that differ are checked, copied and encoded. What is remembered counts
only while the document has, at that path, what the last put left there; otherwise the whole list is
compared with the document, as a handle does that remembers nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial
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
        return frozen if all(map(_is, items, frozen)) else items
    if kind is int or kind is bool:
        return Exact(frozen)
    if kind is float or kind is msgspec.msgpack.Ext:
        return ExactEncoding(codec.encode(frozen))
    return frozen  # a branch of a large container equals nothing, so it is compared by its digest


def _is(one: Any, other: Any) -> bool:
    return one is other


class PutList:
    """A long list that was put: a private copy of its items, and how it differs from the last.

    ``known`` is what the document had at its path after the last put, ``apart`` are the indexes of
    the items that differ from that.
    """

    __slots__ = ("apart", "comparable", "items", "known", "known_size", "size")

    def __init__(self, value: list[Any], path: Path, last: PutList | None, known: Any) -> None:
        self.known = MISSING if last is None else known
        self.known_size = 0 if last is None else len(last.items)
        self.items: list[Any] = [] if last is None else last.items[: len(value)]
        self.comparable: list[Any] = [] if last is None else last.comparable[: len(value)]
        self.size: int = 0 if last is None else last.size - _size(last.items[len(value) :])
        self.apart = [] if self._starts(value) else self._differing(value)
        for index in self.apart:
            self._replace(index, freeze(value[index], (*path, index)))
        for index in range(len(self.items), len(value)):
            self._add(freeze(value[index], (*path, index)))

    def _starts(self, value: list[Any]) -> bool:
        """Whether all items that both lists have are equal."""
        count = len(self.comparable)
        return _is_equal(self.comparable, value if len(value) == count else value[:count])

    def _differing(self, value: list[Any]) -> list[int]:
        apart = []
        for start in range(0, len(self.comparable), nodes.FAN):
            part = self.comparable[start : start + nodes.FAN]
            if not _is_equal(part, value[start : start + len(part)]):
                pairs = zip(part, value[start:], strict=False)
                apart += [i for i, pair in enumerate(pairs, start) if not _is_equal(*pair)]
        return apart

    def _replace(self, index: int, frozen: Any) -> None:
        self.size += _size([frozen]) - _size([self.items[index]])
        self.items[index] = frozen
        self.comparable[index] = comparable(frozen)

    def _add(self, frozen: Any) -> None:
        self.size += _size([frozen])
        self.items.append(frozen)
        self.comparable.append(comparable(frozen))

    def frozen(self) -> Any:
        """Return the list as a frozen value."""
        return nodes.build_list(self.items)

    def changes(self, document: Document, before: Any, path: Path) -> Iterator[Change]:
        """Yield the changes that turn the present value into the list."""
        if self.known is MISSING or not (before is self.known or same(before, self.known)):
            yield from derive(document, before, self.frozen(), path)
            return
        start = min([*self.apart[:1], self.known_size, len(self.items)])
        if start < len(self.items) or start < self.known_size:
            old = document.resolved(before)
            yield from splice(document, old, path, start, self.items[start:], self.apart)


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
