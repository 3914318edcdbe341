"""The state of a session inside of one decision: read and changed by path, with few copies."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from mulligan.document import nodes
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import APPEND, DELETE, SET, STATE
from mulligan.document.values import freeze, parse_path
from mulligan.model import Path
from mulligan.session.write.decisions import Changes, Decision, truncate_change

T = TypeVar("T")

_checked = lru_cache(maxsize=1024)(parse_path)
"""Names of channels are part of paths, and are the same ones at every step."""


def deciding(function: Callable[[StateChanges], T]) -> Decision[T]:
    """Return the decision that a function of the state is; it may run twice."""
    return lambda work: function(StateChanges(work))


def value_at(document: Document, path: Path, default: Any = None) -> Any:
    """Return a copy of the value at a path of the state."""
    found = document.find((*STATE, *path))
    return default if found is MISSING else document.plain(found)


def length_at(document: Document, path: Path) -> int:
    """Return the length of the list at a path of the state; 0 if there is none."""
    found = document.find((*STATE, *path))
    return 0 if found is MISSING else nodes.size(document.resolved(found))


class StateChanges:
    """What a decision sees of the state, and changes in it; see ``State`` for the methods.

    Paths are tuples of keys, and of positions that are not negative.
    """

    def __init__(self, work: Changes) -> None:
        self._work = work

    def get(self, path: Path, default: Any = None) -> Any:
        """Return a copy of the value at a path."""
        return value_at(self._work.document, path, default)

    def texts(self, path: Path, *keys: str) -> list[str | None]:
        """Return the texts that a dictionary has for keys; None for each that is not there."""
        document = self._work.document
        found = document.find((*STATE, *path))
        entries = {} if found is MISSING else document.resolved(found)
        return [document.plain(entries.get(key)) for key in keys]

    def length(self, path: Path) -> int:
        """Return the length of a list; 0 if there is none."""
        return length_at(self._work.document, path)

    def set(self, path: Path, value: Any) -> None:
        """Set the value at a path."""
        self._work.add((SET, {"path": list(_checked(path)), "value": freeze(value, path)}))

    def extend(self, path: Path, values: list[Any]) -> None:
        """Append values to a list."""
        self.extend_frozen(path, [freeze(value, path) for value in values])

    def extend_frozen(self, path: Path, values: list[Any]) -> None:
        """Append values to a list that ``freeze`` returned."""
        self._work.add((APPEND, {"path": list(_checked(path)), "values": nodes.build_list(values)}))

    def append(self, path: Path, value: Any) -> None:
        """Append one value to a list."""
        self.extend(path, [value])

    def truncate(self, path: Path, length: int) -> None:
        """Remove all but the first items of a list."""
        truncate_change(path, length)(self._work)

    def delete(self, path: Path) -> None:
        """Delete the value at a path."""
        self._work.add((DELETE, {"path": list(path)}))
