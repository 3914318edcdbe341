"""The state as its users see it: get, set, append, extend, put, delete by path."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from mulligan.document import nodes
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import STATE
from mulligan.document.values import PathLike, freeze, parse_path
from mulligan.errors import InvalidPath, UnstorableValue
from mulligan.session.arguments import items
from mulligan.session.components import check_root, check_writable
from mulligan.session.write import decisions
from mulligan.session.write.decisions import UNSET, Changes, Decision, T

if TYPE_CHECKING:
    from mulligan.model import Path

_ONE = "Nothing was written. `append` adds one value, whatever it is."


class StateWriter(Protocol):
    """What the state needs from its session."""

    def write(self, decision: Decision[T]) -> T:
        """Write a decision in a transaction, or in the open batch; return its result."""
        ...

    def document(self) -> Document:
        """Return the newest document, including the open batch."""
        ...


class State:
    """The shared document of a session.

    Paths are tuples or ``/``-separated strings. Every change is durable when its call returns,
    or, inside ``session.batch()``, when the batch ends. ``expected`` makes a change conditional:
    it raises ``Conflict`` unless the current value equals it (``MISSING``: no value).
    ``tasks``, ``mailbox``, ``agents`` and ``orchestrator`` can be read here; they are written
    through their own API only, and a write raises ``InvalidPath``.
    """

    def __init__(self, session: StateWriter, *, is_guarded: bool = True) -> None:
        """Connect to a session; unless guarded, every component can be written."""
        self._session = session
        self._is_guarded = is_guarded

    def get(self, path: PathLike = "", default: Any = None) -> Any:
        """Return a copy of the value at a path, or the default if there is none."""
        document = self._session.document()
        found = document.find((*STATE, *parse_path(path)))
        return default if found is MISSING else document.plain(found)

    def set(self, path: PathLike, value: Any, *, expected: Any = UNSET) -> None:
        """Set the value at a path; missing parent dictionaries are created."""
        place = self._writable(path)
        frozen = freeze(value, place)
        self._write(place, frozen, decisions.set_change(place, frozen, _expected(expected)))

    def append(self, path: PathLike, value: Any) -> None:
        """Append one value to the list at a path, which is created if missing."""
        self.extend(path, [value])

    def extend(self, path: PathLike, values: Iterable[Any]) -> None:
        """Append values to the list at a path, which is created if missing."""
        place = self._writable(path)
        if not place:
            raise InvalidPath("The root of the state is a dictionary and cannot be appended to.")
        given = items(values, "What a list is extended by is a list", UnstorableValue, _ONE)
        frozen = [freeze(value, place) for value in given]
        self._session.write(decisions.extend_change(place, frozen))

    def put(self, path: PathLike, value: Any, *, expected: Any = UNSET) -> None:
        """Make the value at a path equal to a whole value, storing only what changed.

        Lists that only grew become appends, so passing a whole conversation at every step needs no
        more storage than appending to it.
        """
        place = self._writable(path)
        frozen = freeze(value, place)
        self._write(place, frozen, decisions.put_change(place, frozen, _expected(expected)))

    def delete(self, path: PathLike, *, expected: Any = UNSET) -> None:
        """Delete the value at a path; raises ``PathNotFound`` if there is none."""
        place = self._writable(path)
        self._session.write(decisions.delete_change(place, _expected(expected)))

    def _writable(self, path: PathLike) -> Path:
        place = parse_path(path)
        if self._is_guarded:
            check_writable(place)
        return place

    def _write(self, place: Path, value: Any, decide: Decision[None]) -> None:
        """Write a value; a new root must leave components with their own API unchanged."""

        def checked(work: Changes) -> None:
            if nodes.is_map(value):  # anything else is refused below
                check_root(work.document, value)
            decide(work)

        self._session.write(checked if self._is_guarded and not place else decide)


def _expected(value: Any) -> Any:
    return value if value is UNSET or value is MISSING else freeze(value)
