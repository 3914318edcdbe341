"""Orphans: processes that an earlier supervisor started for agents and did not live to end.

A process is known by the variables it was started with, which name store, session, agent and epoch;
whatever else has its number by now is not touched.
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
    """A process that belongs to an agent, and under which epoch."""

    pid: int
    agent: str
    epoch: int


def find_orphans(store: Store, session: str) -> list[Orphan]:
    """Return the processes of a session's agents, whoever started them; none without /proc."""
    if store.path is None:
        return []
    above = ancestors()  # a shell that an agent opened may be among them
    return [
        found
        for pid in pids()
        if pid not in above and (found := _orphan(pid, store.path, session)) is not None
    ]


def end_orphans(store: Store, session: str, under: Lease | None = None) -> list[Orphan]:
    """End the processes of earlier supervisors, and shut them out of the session.

    For one who holds the supervisor's lease (``under``): whatever runs for the session then is a
    orphan. Raises ``StaleLease`` when that lease is over, ``StillRunning`` when one does not end.
    """
    ended: dict[int, Orphan] = {}
    for _ in range(_MAX_ROUNDS):  # one that is being ended may have started another one
        found = find_orphans(store, session)
        for orphan in found:
            # Before anything is written: one that is stopped may have the lock of the writers.
            _end(orphan, str(store.path), session)
        for agent in {orphan.agent for orphan in found} - {s.agent for s in ended.values()}:
            fence(store, session, agent, under)
        ended |= {orphan.pid: orphan for orphan in found}
        if not found:
            return list(ended.values())
    left = ", ".join(f"{orphan.pid} of {orphan.agent}" for orphan in found)
    raise StillRunning(
        f"Processes of an earlier supervisor of {session!r} cannot be ended: {left}.",
        hint="They can write to the session no more, but may change files. End them, then go on.",
    )


def _orphan(pid: int, store: str, session: str) -> Orphan | None:
    """Return what a process is for, if it is one of the session's."""
    if pid == os.getpid():
        return None
    try:
        if os.getpgid(pid) == os.getpgrp():
            return None  # it is one of those that started us, or that we belong to
    except OSError:
        return None  # gone meanwhile
    said = variables(pid) or {}  # nothing is known of another user's
    if said.get(SESSION) != session or not _is_same(said.get(STORE), store):
        return None
    agent, epoch = said.get(AGENT), said.get(EPOCH, "")
    return Orphan(pid, agent, int(epoch)) if agent and epoch.isdecimal() else None


def _is_same(one: str | None, other: str) -> bool:
    return one is not None and os.path.realpath(one) == os.path.realpath(other)


def _end(orphan: Orphan, store: str, session: str) -> None:
    """End a process, and wait until it is gone; looked at once more through its pidfd."""
    try:
        handle = os.pidfd_open(orphan.pid)
    except (OSError, AttributeError):
        return
    try:
        # The handle is of one process for good, so what is true of it now stays true.
        if _orphan(orphan.pid, store, session) == orphan:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            poller = select.poll()
            poller.register(handle, select.POLLIN)
            poller.poll(_END_SECONDS * 1000)
    finally:
        os.close(handle)
