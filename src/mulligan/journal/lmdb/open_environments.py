"""The LMDB environments that a process has open, each once, and what a fork does to them.

LMDB must not be opened twice in one process: all handles on a directory share one environment.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mulligan.errors import StoreOpenedTwice
from mulligan.journal.lmdb import environment
from mulligan.journal.lmdb.environment import Environment, Key

# The one piece of global state: environments by the identity of their directory.
_environments: dict[Key, Environment] = {}
# Reentrant: while a thread opens a store, a garbage collection may run in it, and with it the
# ``__del__`` of an object that closes another one.
_registry_lock = threading.RLock()

# The journals that the parent of this process had transactions in when it forked.
_used_at_fork: set[Key] = set()

_dropped: deque[tuple[Key, Environment]] = deque()
"""Environments that the next ``acquire`` releases; the handles of most became garbage unclosed."""


class _Releases(threading.local):
    """What a thread has to release after its fork; two threads may fork at the same time."""

    def __init__(self) -> None:
        self.all: list[Callable[[], None]] = []


_releases = _Releases()


def _before_fork() -> None:
    """Wait until no transaction is open: in the fork it would never end, and would block LMDB.

    All waits are bounded: the thread that forks may itself be inside a transaction.
    """
    # Held across the fork, so that no thread opens an environment that the child would inherit half
    # made.
    if _registry_lock.acquire(timeout=environment.FORK_WAIT_SECONDS):
        _releases.all.append(_registry_lock.release)
    for shared in list(_environments.values()):
        if shared.pause():
            _releases.all.append(shared.resume)


def _after_fork() -> None:
    while _releases.all:
        _releases.all.pop()()


def _renew_locks() -> None:
    """Replace locks that may have been held at the fork by threads that do not exist here."""
    global _registry_lock
    _registry_lock = threading.RLock()
    for key, shared in _environments.items():
        shared.renew_lock()
        if shared.active:
            _used_at_fork.add(key)
    _releases.all.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_renew_locks)


@atexit.register
def _mark_all_clean() -> None:
    """Mark the journals of a program as clean that exits without closing its stores."""
    for shared in list(_environments.values()):
        shared.mark_clean()


def acquire(key: Key, directory: Path, *, read_only: bool, salvage: bool = False) -> Environment:
    """Return the environment of this process for a directory; see ``release``."""
    _release_dropped()
    with _registry_lock:
        shared = _environments.get(key)
        if shared is not None and shared.pid != os.getpid():
            # After a fork, the parent's handle must be dropped before LMDB can be opened again.
            shared.abandon()
            del _environments[key]
            shared = None
        # Closed: by a garbage collection in this thread, since it was looked up.
        if shared is None or shared.closed:
            # Under the lock: opening a file twice in one process breaks LMDB's locks.
            with _fork_named(key, directory):
                shared = Environment(directory, read_only=read_only, salvage=salvage)
            _environments[key] = shared
        elif shared.read_only and not read_only:
            raise StoreOpenedTwice(
                f"The store at {directory.parent} is open for reading in this process; "
                "it cannot be opened for writing as well."
            )
        else:
            shared.users += 1
        return shared


@contextmanager
def _fork_named(key: Key, directory: Path) -> Iterator[None]:
    """Say so if a journal cannot be opened because of what its parent did at the fork."""
    try:
        yield
    except StoreOpenedTwice as error:
        if key not in _used_at_fork:
            raise
        raise StoreOpenedTwice(
            f"This process was forked while its parent used the store at {directory.parent}.",
            hint="Nothing was changed. Fork outside of transactions, while no other thread writes "
            "for long, or start processes in another way (spawn, or a command).",
        ) from error


def release(key: Key, shared: Environment) -> None:
    """Release an environment; the last handle of the process closes it."""
    # Not waiting inside a transaction, where a garbage collection may have led: a fork that has the
    # lock waits for its end.
    is_inside = any(other.is_used_by_this_thread for other in list(_environments.values()))
    if not _registry_lock.acquire(blocking=not is_inside):
        drop(key, shared)
        return
    try:
        # Under the lock of the registry: an ``acquire`` at the same moment must find either an open
        # environment or none.
        shared.users -= 1
        # One that could not be closed stays registered, because LMDB still has the file open.
        if shared.users == 0 and shared.pid == os.getpid() and shared.close():
            _environments.pop(key, None)
    finally:
        _registry_lock.release()


def drop(key: Key, shared: Environment) -> None:
    """Have the next ``acquire`` release an environment, such as one whose handle is garbage.

    Not here: a garbage collection may run while this very thread holds any of the locks.
    """
    _dropped.append((key, shared))


def _release_dropped() -> None:
    for _ in range(len(_dropped)):
        with suppress(IndexError):  # another thread was faster
            key, shared = _dropped.popleft()
            if shared.active:
                # A transaction has outlived its handle: waiting for its end would hold up others.
                _dropped.append((key, shared))
            else:
                release(key, shared)
