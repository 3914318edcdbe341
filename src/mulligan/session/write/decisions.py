"""Decisions: what a write does, decided on the newest document.

The write path has one vocabulary:

- A *decision* is a function that is given the newest document. It adds *changes*, and returns what
  its caller wants to know: ``Writer.write`` and ``Writer.commit`` return what it returns.
- A *change* is an event in the making: its kind and its payload.

A decision may run twice: first outside the write lock, on the newest document that this process
knows; then again inside, if another process wrote meanwhile. Only the last run counts. So a
decision must have no side effects besides the changes that it adds: it assigns nothing outside
itself, does not wait and does not sync.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from mulligan.document import nodes
from mulligan.document.compare import same, splice
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import APPEND, DELETE, SET, STATE, Change
from mulligan.document.values import format_path
from mulligan.errors import Conflict, InvalidPath
from mulligan.model import Path

T = TypeVar("T")


class Changes(Protocol):
    """The changes that a decision has added so far, and the document after them."""

    @property
    def document(self) -> Document:
        """The newest document, with the changes added so far."""
        ...

    def add(self, change: Change) -> object:
        """Add a change; the document has it from then on."""
        ...

    def attempt(self, decision: Decision[T]) -> T:
        """Run another decision as part of this one; if it raises, nothing of it is kept."""
        ...


Decision = Callable[[Changes], T]
"""Adds changes, and returns a result for the caller; may run twice."""


def adding(changes: Callable[[Document], Iterable[Change]]) -> Decision[None]:
    """Return a decision that adds what a function derives from the document; it has no result."""

    def decide(work: Changes) -> None:
        for change in changes(work.document):
            work.add(change)

    return decide


class Unset:
    """The type of :data:`UNSET`."""


UNSET = Unset()
"""Stands for an argument that was not given."""


def set_change(path: Path, value: Any, expected: Any) -> Decision[None]:
    """Set a value, if the present one is the expected one."""

    def decide(work: Changes) -> None:
        place = checked_place(work.document, path, expected)
        if not path and not nodes.is_map(value):
            raise InvalidPath("The root of the state is a dictionary and stays one.")
        work.add((SET, {"path": place, "value": value}))

    return decide


def extend_change(path: Path, values: list[Any]) -> Decision[None]:
    """Append values to a list."""

    def decide(work: Changes) -> None:
        place = checked_place(work.document, path, UNSET)
        work.add((APPEND, {"path": place, "values": nodes.build_list(values)}))

    return decide


def pop_change(path: Path) -> Decision[tuple[Any, Document]]:
    """Delete the last item of a list; return it, and the document that has it."""

    def decide(work: Changes) -> tuple[Any, Document]:
        document = work.document
        place, found = _list(document, path)
        if not nodes.size(found):
            return MISSING, document
        last = [*place, nodes.size(found) - 1]
        work.add((DELETE, {"path": last}))
        return document.find((*STATE, *last)), document

    return decide


def truncate_change(path: Path, length: int) -> Decision[None]:
    """Delete all but the first items of a list."""

    def decide(work: Changes) -> None:
        place, found = _list(work.document, path)
        if nodes.size(found) > length:
            for change in splice(work.document, found, tuple(place), length, [], []):
                work.add(change)

    return decide


def _list(document: Document, path: Path) -> tuple[list[str | int], Any]:
    """Return the path of a list as the event stores it, and the list; empty if there is none."""
    place = checked_place(document, path, UNSET)
    found = document.find((*STATE, *place))
    node = [] if found is MISSING else document.resolved(found)
    if not nodes.is_list(node):
        raise InvalidPath(f"The value at {format_path(path)!r} is not a list.")
    return place, node


def delete_change(path: Path, expected: Any) -> Decision[None]:
    """Delete a value, if it is the expected one."""
    if not path:
        raise InvalidPath(
            "The root of the state cannot be deleted.", hint='Empty it with set("", {}).'
        )

    def decide(work: Changes) -> None:
        work.add((DELETE, {"path": checked_place(work.document, path, expected)}))

    return decide


def checked_place(document: Document, path: Path, expected: Any) -> list[str | int]:
    """Return the path as the event stores it, after the comparison if one was requested."""
    place = list(document.normal((*STATE, *path))[1:])
    if not isinstance(expected, Unset):
        # Compared inside the decision, on the document that the event follows: this makes it a
        # compare-and-set across processes.
        present = document.find((*STATE, *place))
        if not same(present, expected):
            shown = "nothing" if present is MISSING else repr(document.plain(present))[:80]
            wanted = "nothing was expected" if expected is MISSING else "another one was expected"
            raise Conflict(f"At {format_path(path)!r} there is {shown}, but {wanted}.")
    return place
