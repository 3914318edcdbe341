"""The state as its users see it: get, set, append, extend, put, delete by path."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from mulligan.document.document import MISSING, Document
from mulligan.document.fold import STATE
from mulligan.document.values import PathLike, freeze, parse_path
from mulligan.errors import InvalidPath, UnstorableValue
from mulligan.session.arguments import items
from mulligan.session.write import decisions
from mulligan.session.write.decisions import UNSET, Decision, T

_ONE = "Nothing was written. `append` adds one value, whatever it is."


class StateWriter(Protocol):
    """What the state needs of its session."""

    def write(self, decision: Decision[T]) -> T:
        """Write what is decided in a transaction, or in the batch; return the result."""
        ...

    def document(self) -> Document:
        """Return the newest document, the open batch included."""
        ...


class State:
    """The shared document of a session.

    Paths are tuples or ``/``-separated strings. Every change is durable when its call returns,
    or, inside ``session.batch()``, when the batch ends. ``expected`` makes a change conditional:
    it raises ``Conflict`` unless the present value is that one (``MISSING``: none at all).
    """

    def __init__(self, session: StateWriter) -> None:
        self._session = session

    def get(self, path: PathLike = "", default: Any = None) -> Any:
        """Return a copy of the value at a path, or the default where there is none."""
        document = self._session.document()
        found = document.find((*STATE, *parse_path(path)))
        return default if found is MISSING else document.plain(found)

    def set(self, path: PathLike, value: Any, *, expected: Any = UNSET) -> None:
        """Set the value at a path; missing dictionaries on the way are made."""
        place = parse_path(path)
        self._session.write(decisions.set_change(place, freeze(value, place), _expected(expected)))

    def append(self, path: PathLike, value: Any) -> None:
        """Append one value to the list at a path, which is made if missing."""
        self.extend(path, [value])

    def extend(self, path: PathLike, values: Iterable[Any]) -> None:
        """Append values to the list at a path, which is made if missing."""
        place = parse_path(path)
        if not place:
            raise InvalidPath("The root of the state is a dictionary and cannot be appended to.")
        given = items(values, "What a list is extended by is a list", UnstorableValue, _ONE)
        frozen = [freeze(value, place) for value in given]
        self._session.write(decisions.extend_change(place, frozen))

    def put(self, path: PathLike, value: Any, *, expected: Any = UNSET) -> None:
        """Make the value at a path equal to a whole value, storing only what changed.

        Lists that only grew become appends, so handing over a whole conversation at every
        step costs no more storage than appending to it.
        """
        place = parse_path(path)
        self._session.write(decisions.put_change(place, freeze(value, place), _expected(expected)))

    def delete(self, path: PathLike, *, expected: Any = UNSET) -> None:
        """Delete what is at a path; raises ``PathNotFound`` when nothing is."""
        place = parse_path(path)
        self._session.write(decisions.delete_change(place, _expected(expected)))


def _expected(value: Any) -> Any:
    return value if value is UNSET or value is MISSING else freeze(value)
