"""What every adapter needs: a store, its open sessions by name, and a thread for its calls."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

import mulligan
from mulligan.aio_worker import finished, to_end
from mulligan.document.document import MISSING
from mulligan.errors import Conflict, UnknownSession
from mulligan.session import Session
from mulligan.session.names import session_name
from mulligan.session.parts.state import State
from mulligan.session.write.delete import delete_session
from mulligan.store import Store, engine_of

P = ParamSpec("P")
R = TypeVar("R")

StoreLike = Store | str | os.PathLike[str]
"""An open store, or the directory of one, as ``mulligan.open`` takes it."""

MAX_OPEN = 128
"""How many sessions a process keeps open for an adapter; an unused one costs a replay later."""

MAX_PART = 54
"""How long one part of a session's name is; longer ones end in a digest."""


class Handles:
    """The store of an adapter and the sessions that it has open, for all threads."""

    def __init__(self, store: StoreLike) -> None:
        self.store = store if isinstance(store, Store) else mulligan.open(store)
        self._is_ours = not isinstance(store, Store)
        self._open: OrderedDict[str, Session] = OrderedDict()
        # Not held while a session is closed: that may wait for a transaction of another thread.
        self._lock = threading.Lock()
        _HANDLES.add(self)

    def session(self, name: str) -> Session:
        """Return the session of that name, created if missing."""
        return self._kept(name, create=True)

    def find(self, name: str) -> Session | None:
        """Return the session of that name, or None."""
        try:
            return self._kept(name, create=False)
        except UnknownSession:
            return None

    def forget(self, name: str) -> None:
        """Close the handle on a session, if one is open."""
        with self._lock:
            opened = self._open.pop(name, None)
        if opened is not None:
            opened.close()

    def delete(self, name: str, expected: tuple[int, int] | None = None) -> None:
        """Delete a session, if it exists; what nothing else needs of it is gone at the next gc.

        ``expected`` is as in ``delete_session``: nothing is deleted that was written since.
        """
        self.forget(name)
        try:
            delete_session(engine_of(self.store), name, expected)
        except UnknownSession:
            return  # another process was faster

    def starting_with(self, prefix: str) -> list[Session]:
        """Return the sessions whose names start like this, oldest first."""
        names = [session.name for session in self.store.sessions(prefix)]
        return [found for name in names if (found := self.find(name)) is not None]

    def close(self) -> None:
        """Close the store if the adapter opened it. Idempotent."""
        with self._lock:
            opened, self._open = [*self._open.values()], OrderedDict()
        for session in opened:
            session.close()
        if self._is_ours:
            self.store.close()

    def _kept(self, name: str, *, create: bool) -> Session:
        with self._lock:
            session = self._open.pop(name, None)
            # Another process may have deleted it, and made another one of that name since.
            if session is None or not session.internal.is_present():
                session = self.store.session(name, create)
            self._open[name] = session
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        return session


_HANDLES: weakref.WeakSet[Handles] = weakref.WeakSet()


def _after_fork() -> None:
    # A thread that is not there in the child may have held the lock.
    for handles in list(_HANDLES):
        handles._lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class CallThread:
    """One thread that makes blocking calls for coroutines, in the order they were made.

    It belongs to no event loop, since frameworks run one program in several of them. A call that
    is cancelled before it started is not made. One that has started ends before the cancellation is
    raised, so that nothing is written after it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._executor, self._pid = ThreadPoolExecutor(1, name), os.getpid()

    async def run(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Make a call in the thread and return its result."""
        return await finished(self._submitted(partial(call, *args, **kwargs)))

    async def run_to_end(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Make a call that a cancellation does not take back, and return its result."""
        return await to_end(self._submitted(partial(call, *args, **kwargs)))

    async def enter(self, call: Callable[[], R], leave: Callable[[R], None]) -> R:
        """Make a call whose result has to be left; a cancellation leaves it."""
        return await finished(self._submitted(call), leave)

    def _submitted(self, call: Callable[[], R]) -> Future[R]:
        if self._pid != os.getpid():
            # A fork has the object of its parent, and none of its threads.
            self._executor, self._pid = ThreadPoolExecutor(1, self._name), os.getpid()
        return self._executor.submit(call)


def name_of(kind: str, *parts: str) -> str:
    """Return the name of the session for ids of a framework; different ids, different names."""
    return "+".join((kind, *(_part(part) for part in parts)))


def prefix_of(kind: str, *parts: str) -> str:
    """Return what the names of all sessions begin with whose first ids are these."""
    return name_of(kind, *parts) + "+"


def retried(call: Callable[[], R]) -> R:
    """Make a call that compares before it writes, again while others write in between."""
    while True:
        try:
            return call()
        except Conflict:
            continue  # another process wrote: what it wrote is read now, and decided on again


def delete_if_present(state: State, *path: str) -> None:
    """Delete a value if there is one when it is written: another process may have deleted it."""

    def delete(newest: State) -> None:
        if newest.get(path, MISSING) is not MISSING:
            newest.delete(path)

    state.transaction(delete)


def _part(text: str) -> str:
    named = session_name(text)
    if len(named) <= MAX_PART:
        return named
    from blake3 import blake3  # few ids are this long

    digest = blake3(text.encode("utf-8", "surrogatepass")).hexdigest(length=16)
    end = f"%-{digest}"
    return named[: MAX_PART - len(end)] + end


def text_of(value: Any, what: str) -> str:
    """Return an id that a framework gave, or raise ``TypeError``."""
    if not isinstance(value, str) or not value:
        raise TypeError(f"{what} is a text, not {value!r}.")
    return value
