"""Orphan processes: agents whose supervisor died before it could end them.

An orphan is identified by the variables it was started with: store, session, agent and epoch. A
process that merely reuses its pid is not touched.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal

import msgspec

from mulligan.errors import StillRunning
from mulligan.model import Lease
from mulligan.opener import AGENT, EPOCH, SESSION, STORE
from mulligan.procfs import ancestors, pids, variables
from mulligan.recovery.resume import fence
from mulligan.store import Store

_END_SECONDS = 5.0
_MAX_ROUNDS = 5


class Orphan(msgspec.Struct, frozen=True):
    """A process of an agent, and the epoch it was started under."""

    pid: int
    agent: str
    epoch: int


def find_orphans(store: Store, session: str) -> list[Orphan]:
    """Return the processes of a session's agents; empty where there is no /proc."""
    if store.path is None:
        return []
    above = ancestors()  # a shell that an agent opened may be among them
    return [
        found
        for pid in pids()
        if pid not in above and (found := _orphan(pid, store.path, session)) is not None
    ]


def end_orphans(store: Store, session: str, under: Lease | None = None) -> list[Orphan]:
    """End the processes of earlier supervisors, and fence them out of the session.

    The caller holds the supervisor's lease (``under``), so every process of the session is an
    orphan. Raises ``StaleLease`` if that lease has ended, ``StillRunning`` if a process does not
    end.
    """
    ended: dict[int, Orphan] = {}
    for _ in range(_MAX_ROUNDS):  # an orphan may have started another process meanwhile
        found = find_orphans(store, session)
        for orphan in found:
            # Before the first write: a stopped orphan may hold the write lock.
            _end(orphan, str(store.path), session)
        for agent in {orphan.agent for orphan in found} - {s.agent for s in ended.values()}:
            # After the kill, and even if it failed: a process that cannot be ended can at least
            # write no more.
            fence(store, session, agent, under)
        ended |= {orphan.pid: orphan for orphan in found}
        if not found:
            return list(ended.values())
    left = ", ".join(f"{orphan.pid} of {orphan.agent}" for orphan in found)
    raise StillRunning(
        f"Processes of an earlier supervisor of {session!r} cannot be ended: {left}.",
        hint="They can no longer write to the session, but may change files. End them, then retry.",
    )


def _orphan(pid: int, store: str, session: str) -> Orphan | None:
    """Return the agent and epoch of a process, if it belongs to the session."""
    if pid == os.getpid():
        return None
    try:
        if os.getpgid(pid) == os.getpgrp():
            return None  # this process or one that it belongs to
    except OSError:
        return None  # gone meanwhile
    said = variables(pid) or {}  # nothing is known about another user's
    if said.get(SESSION) != session or not _is_same(said.get(STORE), store):
        return None
    agent, epoch = said.get(AGENT), said.get(EPOCH, "")
    return Orphan(pid, agent, int(epoch)) if agent and epoch.isdecimal() else None


def _is_same(one: str | None, other: str) -> bool:
    return one is not None and os.path.realpath(one) == os.path.realpath(other)


def _end(orphan: Orphan, store: str, session: str) -> None:
    """End a process and wait until it is gone; checked again once its pidfd is open."""
    try:
        handle = os.pidfd_open(orphan.pid)
    except (OSError, AttributeError):
        return
    try:
        # A pidfd never refers to another process, so this check cannot go stale.
        if _orphan(orphan.pid, store, session) == orphan:
            # SIGKILL, because it must end soon: until it has, the session cannot be recovered.
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            poller = select.poll()
            poller.register(handle, select.POLLIN)
            # Bounded: a process in an uninterruptible system call ends only after that call.
            poller.poll(_END_SECONDS * 1000)
    finally:
        os.close(handle)
