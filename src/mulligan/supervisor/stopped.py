"""Stopped orphans: agents that were stopped by a signal, and whose supervisor is dead.

An agent that was stopped during a write still holds the journal's write lock, and blocks every
process that opens the store. So stopped orphans are found without opening it, and ended: no
supervisor is left to continue them, and their unfinished transaction never happened.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal

import msgspec

from mulligan.model import Holder
from mulligan.opener import AGENT, SESSION, STORE, SUPERVISOR_ID
from mulligan.procfs import is_stopped, pids, variables
from mulligan.session.write.leases import is_dead

_END_SECONDS = 5.0


class StoppedAgent(msgspec.Struct, frozen=True):
    """A stopped process, with its session and agent."""

    pid: int
    session: str
    agent: str


def find_stopped(store: str) -> list[StoppedAgent]:
    """Return the stopped processes of a store's agents whose supervisor is dead."""
    return [found for pid in pids() if (found := _stopped(pid, store)) is not None]


def end_stopped(store: str) -> list[StoppedAgent]:
    """End them, wait until they are gone, and return them."""
    found = find_stopped(store)
    for one in found:
        _end(one, store)
    return found


def _stopped(pid: int, store: str) -> StoppedAgent | None:
    said = variables(pid) if is_stopped(pid) else None
    if said is None:
        return None  # not stopped, gone, or another user's
    if not {STORE, SESSION, AGENT, SUPERVISOR_ID} <= said.keys():
        return None
    if os.path.realpath(said[STORE]) != os.path.realpath(store) or not is_dead(
        Holder.parse(said[SUPERVISOR_ID])
    ):
        return None
    return StoppedAgent(pid, said[SESSION], said[AGENT])


def _end(one: StoppedAgent, store: str) -> None:
    try:
        handle = os.pidfd_open(one.pid)
    except (OSError, AttributeError):
        return
    try:
        # A pidfd never refers to another process, so this check cannot go stale.
        if _stopped(one.pid, store) == one:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            # Waited for: the kernel releases its locks only when it is gone. Bounded, because a
            # process in an uninterruptible system call does not end.
            select.select([handle], [], [], _END_SECONDS)
    finally:
        os.close(handle)
