"""Reading a state by path: the newest one, or the one of a point in the past."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from mulligan.document import nodes
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import STATE
from mulligan.document.history import document_at
from mulligan.document.values import PathLike, format_path, parse_path
from mulligan.errors import InvalidPath
from mulligan.model import Point, SessionRecord
from mulligan.session import arguments
from mulligan.timeline.points import Points
from mulligan.timeline.sessions import check_exists

if TYPE_CHECKING:
    from mulligan.engine import Engine
    from mulligan.journal.protocol import View

T = TypeVar("T")


class StateReader:
    """Values by path, and parts of long lists without the rest of them."""

    def _read(self, use: Callable[[Document], T]) -> T:
        """Return what a function reads from the document."""
        raise NotImplementedError

    def get(self, path: PathLike = "", default: Any = None) -> Any:
        """Return a copy of the value at a path, or the default if there is none."""
        place = (*STATE, *parse_path(path))

        def value(document: Document) -> Any:
            found = document.find(place)
            return default if found is MISSING else document.plain(found)

        return self._read(value)

    def length(self, path: PathLike = "") -> int:
        """Return how many items the list at a path has, or entries the dictionary; 0 if missing.

        The items are not loaded.
        """
        place = parse_path(path)
        return self._read(lambda document: nodes.size(_container(document, place)))

    def slice(self, path: PathLike, start: int | None = None, stop: int | None = None) -> list[Any]:
        """Return copies of a part of the list at a path, as ``list[start:stop]`` does.

        Only that part is loaded. A missing list is empty.
        """
        place = parse_path(path)

        def items(document: Document) -> list[Any]:
            found = list_at(document, place)
            first, last, _ = slice(start, stop).indices(nodes.size(found))
            plain: list[Any] = document.plain(document.slice(found, first, max(first, last)))
            return plain

        return self._read(items)

    def tail(self, path: PathLike, count: int) -> list[Any]:
        """Return copies of the last ``count`` items of the list at a path; only they are loaded."""
        return self.slice(path, -arguments.count(count, "A number of items")) if count else []


class StateView(StateReader):
    """The state as it was at a point; nothing can be changed.

    It may be kept and read later. Once the point was folded away, reading it raises
    ``PointFolded``.
    """

    def __init__(
        self, engine: Engine, record: SessionRecord, view: View, seq: int, document: Document
    ) -> None:
        """Keep the document that a snapshot has at ``seq`` of a session."""
        self.point = Point(record.name, seq)
        self._engine = engine
        self._record = record
        self._document = document
        self._purge = view.last_purge()

    def __repr__(self) -> str:
        return f"<StateView of {self.point.session!r} #{self.point.seq}>"

    def _read(self, use: Callable[[Document], T]) -> T:
        # Pinned before the look-up: what the point refers to then stays until it was read.
        with self._engine.pin():
            return use(self._present())

    def _present(self) -> Document:
        """Return the document if its point is still there, without what was purged since."""
        with self._engine.read() as view:
            check_exists(view, self._record)
            Points(self._engine, view, self._record).find(self.point)
            if (purge := view.last_purge()) != self._purge:
                number, seq = self._record.number, self.point.seq
                self._document = document_at(view, number, seq, self._engine.load)
                self._purge = purge
        return self._document


def list_at(document: Document, path: tuple[str | int, ...]) -> Any:
    """Return the resolved list at a path of the state, an empty one if there is nothing."""
    found = document.resolved(_found(document, path, []))
    if not nodes.is_list(found):
        raise InvalidPath(f"The value at {format_path(path)!r} is not a list.")
    return found


def _container(document: Document, path: tuple[str | int, ...]) -> Any:
    found = document.resolved(_found(document, path, []))
    if not nodes.is_list(found) and not nodes.is_map(found):
        raise InvalidPath(f"The value at {format_path(path)!r} is no list and no dictionary.")
    return found


def _found(document: Document, path: tuple[str | int, ...], missing: Any) -> Any:
    found = document.find((*STATE, *path))
    return missing if found is MISSING else found
