"""The state as its users see it: read and written by path."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from mulligan.document import nodes
from mulligan.document.document import MISSING, Document
from mulligan.document.values import PathLike, freeze, parse_path
from mulligan.errors import InvalidPath, StateError, UnstorableValue
from mulligan.session.arguments import count, items
from mulligan.session.components import check_root, check_writable
from mulligan.session.state_view import StateReader, StateView
from mulligan.session.write import decisions
from mulligan.session.write.decisions import UNSET, Changes, Decision, T

if TYPE_CHECKING:
    from mulligan.model import Path
    from mulligan.session.write.whole_values import WholeValues
    from mulligan.timeline.points import PointLike

_ONE = "Nothing was written. `append` adds one value, whatever it is."


class StateWriter(Protocol):
    """What the state needs from its session."""

    def write(self, decision: Decision[T]) -> T:
        """Write a decision in a transaction, or in the open batch; return its result."""
        ...

    def document(self) -> Document:
        """Return the newest document, including the open batch."""
        ...

    def check_alone(self, what: str) -> None:
        """Raise an error inside a batch."""
        ...


class State(StateReader):
    """The shared document of a session.

    Paths are tuples or ``/``-separated strings. Every change is durable when its call returns,
    or, inside ``session.batch()``, when the batch ends. ``expected`` makes a change conditional:
    it raises ``Conflict`` unless the current value equals it (``MISSING``: no value).
    ``tasks``, ``mailbox``, ``agents`` and ``orchestrator`` can be read here; they are written
    through their own API only, and a write raises ``InvalidPath``.
    """

    def __init__(
        self,
        session: StateWriter,
        view_at: Callable[[PointLike], StateView],
        *,
        is_guarded: bool = True,
    ) -> None:
        """Connect to a session; unless guarded, every component can be written."""
        self._session = session
        self._is_guarded = is_guarded
        self._puts: WholeValues | None = None
        self._view_at = view_at

    def _read(self, use: Callable[[Document], T]) -> T:
        return use(self._session.document())

    def at(self, point: PointLike) -> StateView:
        """Return the state as it was at a point; nothing is changed."""
        return self._view_at(point)

    def set(self, path: PathLike, value: Any, *, expected: Any = UNSET) -> None:
        """Set the value at a path; missing parent dictionaries are created."""
        place = self._writable(path)
        frozen = freeze(value, place)
        decide = decisions.set_change(place, frozen, _expected(expected))
        self._write(place, lambda: frozen, decide)

    def append(self, path: PathLike, value: Any) -> None:
        """Append one value to the list at a path, which is created if missing."""
        self.extend(path, [value])

    def extend(self, path: PathLike, values: Iterable[Any]) -> None:
        """Append values to the list at a path, which is created if missing."""
        place = self._list(path)
        given = items(values, "What a list is extended by is a list", UnstorableValue, _ONE)
        frozen = [freeze(value, place) for value in given]
        self._session.write(decisions.extend_change(place, frozen))

    def put(self, path: PathLike, value: Any, *, expected: Any = UNSET) -> None:
        """Make the value at a path equal to a whole value, storing only what changed.

        Lists that only grew become appends, so passing a whole conversation at every step needs no
        more storage than appending to it. Long lists that this handle put last are remembered, so
        that only what differs is encoded. Items that are other objects than last time are always
        compared. A change in place of one of the last 512 items is always found, too, and that of
        any item in a list of up to 2,048; in a longer one, that of an older item some puts later.
        """
        from mulligan.session.write import whole_values  # commands that look do not need it

        if self._puts is None:
            self._puts = whole_values.WholeValues()
        place = self._writable(path)
        prepared = self._puts.prepared(value, place)
        decide = whole_values.put_change(place, prepared, _expected(expected))
        found = self._write(place, lambda: whole_values.frozen_value(prepared), decide)
        self._puts.remember(whole_values.put_lists(prepared, place), found)

    def pop(self, path: PathLike, default: Any = None) -> Any:
        """Remove the last item of the list at a path and return it, or the default if it is empty.

        Of several processes, each gets another item. Not inside a batch.
        """
        place = self._list(path)
        # The item must be the one that was removed, and a batch removes at its end.
        self._session.check_alone("Taking an item")
        found, document = self._session.write(decisions.pop_change(place))
        return default if found is MISSING else document.plain(found)

    def truncate(self, path: PathLike, length: int) -> None:
        """Remove all but the first ``length`` items of the list at a path; a shorter one stays."""
        place = self._list(path)
        self._session.write(decisions.truncate_change(place, count(length, "A length")))

    def delete(self, path: PathLike, *, expected: Any = UNSET) -> None:
        """Delete the value at a path; raises ``PathNotFound`` if there is none."""
        place = self._writable(path)
        self._session.write(decisions.delete_change(place, _expected(expected)))

    def transaction(self, function: Callable[[State], T]) -> T:
        """Run a function that reads and changes the state, as one transaction; return its result.

        The function is given the state that its changes follow: nothing is written between its
        reads and its changes, also not by other processes. It may run again, on a newer state, and
        only the last run counts. So it uses only the state that it is given, and has no other
        effects; writing through the session raises ``StateError``. It is quick: other writers of
        the store may be waiting for it. If it raises, nothing is written. In a batch it runs again
        when the batch ends, and its result is that of the first run.
        """

        def decide(work: Changes) -> T:
            running = _Running(work, self._session)
            state = State(running, self._view_at, is_guarded=self._is_guarded)
            # No effect of the decision: what is remembered is compared with the document.
            state._puts = self._puts
            try:
                result = function(state)
            finally:
                running.is_over = True
                self._puts = state._puts
            if isinstance(result, Coroutine):
                result.close()
                raise StateError(
                    "A transaction is a plain function, not a coroutine function.",
                    hint="Nothing was written. Await before the transaction, and pass it values.",
                )
            return result

        return self._session.write(decide)

    def _writable(self, path: PathLike) -> Path:
        place = parse_path(path)
        if self._is_guarded:
            check_writable(place)
        return place

    def _list(self, path: PathLike) -> Path:
        """Return a writable path at which there may be a list."""
        place = self._writable(path)
        if not place:
            raise InvalidPath("The root of the state is a dictionary, not a list.")
        return place

    def _write(self, place: Path, frozen: Callable[[], Any], decide: Decision[T]) -> T:
        """Write a value; a new root must leave components with their own API unchanged."""

        def checked(work: Changes) -> T:
            if nodes.is_map(root := frozen()):  # anything else is refused below
                check_root(work.document, root)
            return decide(work)

        return self._session.write(checked if self._is_guarded and not place else decide)


class _Running:
    """The session of a transaction's function: it writes to the changes that are being decided."""

    def __init__(self, work: Changes, session: StateWriter) -> None:
        self._work = work
        self._session = session
        self.is_over = False

    def write(self, decision: Decision[T]) -> T:
        self._check()
        return self._work.attempt(decision)

    def document(self) -> Document:
        self._check()
        return self._work.document

    def check_alone(self, what: str) -> None:
        self._session.check_alone(what)

    def _check(self) -> None:
        if self.is_over:
            raise StateError(
                "This transaction is over.", hint="Nothing was written. Use `session.state`."
            )


def _expected(value: Any) -> Any:
    return value if value is UNSET or value is MISSING else freeze(value)
