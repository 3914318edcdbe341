"""What a caller asks of the state, turned into changes against the newest document."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mulligan.document import nodes
from mulligan.document.compare import derive, same
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import APPEND, DELETE, SET, STATE, Change
from mulligan.document.values import format_path
from mulligan.errors import Conflict, InvalidPath
from mulligan.model import Path

Decide = Callable[[Document], Iterable[Change]]
"""Decides, on the newest document inside the transaction, which changes to write."""


class Unset:
    """The type of :data:`UNSET`."""


UNSET = Unset()
"""Stands for an argument that was not given."""


def set_change(path: Path, value: Any, expected: Any) -> Decide:
    """Set a value, if the present one is the expected one."""

    def changes(document: Document) -> Iterable[Change]:
        place = _place(document, path, expected)
        if not path and not nodes.is_map(value):
            raise InvalidPath("The root of the state is a dictionary and stays one.")
        return [(SET, {"path": place, "value": value})]

    return changes


def put_change(path: Path, value: Any, expected: Any) -> Decide:
    """Make a whole value so, by the changes that turn the present one into it."""

    def changes(document: Document) -> Iterable[Change]:
        place = _place(document, path, expected)
        if not path and not nodes.is_map(value):
            raise InvalidPath("The root of the state is a dictionary and stays one.")
        return list(derive(document, document.find((*STATE, *place)), value, tuple(place)))

    return changes


def extend_change(path: Path, values: list[Any]) -> Decide:
    """Append values to a list."""

    def changes(document: Document) -> Iterable[Change]:
        place = _place(document, path, UNSET)
        return [(APPEND, {"path": place, "values": nodes.build_list(values)})]

    return changes


def delete_change(path: Path, expected: Any) -> Decide:
    """Delete a value, if it is the expected one."""
    if not path:
        raise InvalidPath(
            "The root of the state cannot be deleted.", hint='Empty it with set("", {}).'
        )

    def changes(document: Document) -> Iterable[Change]:
        return [(DELETE, {"path": _place(document, path, expected)})]

    return changes


def _place(document: Document, path: Path, expected: Any) -> list[str | int]:
    """Return the path as the event keeps it, after the comparison if one was asked for."""
    place = list(document.normal((*STATE, *path))[1:])
    if not isinstance(expected, Unset):
        present = document.find((*STATE, *place))
        if not same(present, expected):
            shown = "nothing" if present is MISSING else repr(document.plain(present))[:80]
            wanted = "nothing was expected" if expected is MISSING else "another one was expected"
            raise Conflict(f"At {format_path(path)!r} there is {shown}, but {wanted}.")
    return place
