"""Leases: one live writer for an actor, and an epoch that shuts out the ones before it."""

from __future__ import annotations

import os
import re
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from mulligan.errors import LeaseHeld, StaleLease
from mulligan.journal.protocol import Txn, View
from mulligan.model import Lease, SessionRecord
from mulligan.session.names import check_agent
from mulligan.timeline.times import shown

_HOLDER = re.compile(r"(.*)/(\d+)/(\d+)", re.DOTALL)
"""How a process is named: host, pid, start time; see ``identity``."""


def this_process() -> str:
    """Return what identifies this process among all that ever ran: host, pid, start time."""
    return identity(os.getpid())


def identity(pid: int) -> str:
    """Return what identifies a process of this machine: host, pid, start time."""
    return f"{os.uname().nodename}/{pid}/{_started(pid) or 0}"


def take(
    txn: Txn,
    session: SessionRecord,
    actor: str,
    *,
    now: datetime,
    ttl: float,
    steal: bool,
    under: Lease | None = None,
) -> Lease:
    """Write a lease with the next epoch; raises ``LeaseHeld`` while another writer is alive.

    ``under`` is the lease that gives the right to take this one, as that of a supervisor does for
    its agents; raises ``StaleLease`` if it is over.
    """
    if under is not None:
        valid(txn, session, under.actor, under.epoch)
    before = txn.lease(session.number, actor)
    if before is None:
        check_agent(actor)  # a session of an earlier version may have an agent of such a name
    if before is not None and not steal and is_held(before, now):
        raise LeaseHeld(
            f"{actor!r} in session {session.name!r} is held by {before.holder} "
            f"until {shown(before.expires)}."
        )
    epoch = before.epoch + 1 if before else 1
    lease = Lease(actor, epoch, this_process(), now + timedelta(seconds=ttl))
    txn.put_lease(session.number, lease)
    return lease


def release_dead(txn: Txn, session: SessionRecord, actor: str) -> None:
    """Give up the lease of an actor whose holder is known to be gone.

    One that only ran out stays: its holder may be busy, and writes again if it was not replaced.
    """
    lease = txn.lease(session.number, actor)
    if lease is not None and not lease.released and is_dead(lease.holder):
        txn.put_lease(session.number, msgspec.structs.replace(lease, released=True))


def is_held(lease: Lease, now: datetime) -> bool:
    """Whether a lease is held by a process that is not known to be gone."""
    return not lease.released and lease.expires > now and not is_dead(lease.holder)


def is_dead(holder: str) -> bool:
    """Whether the process is known to be gone; one on another host, or with no name, never is."""
    named = _HOLDER.fullmatch(holder)
    if named is None or named[1] != os.uname().nodename:
        return False
    return _started(int(named[2])) != (int(named[3]) or None)


def process_of(holder: str) -> int | None:
    """Return the process that is named; None if it is on another host, or has no name."""
    named = _HOLDER.fullmatch(holder)
    return int(named[2]) if named is not None and named[1] == os.uname().nodename else None


def _started(pid: int) -> int | None:
    """Return when a process began, in ticks since boot, or None if it runs no longer."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command's name, in parentheses, may hold spaces; fields are counted from after it.
    fields = stat.rpartition(")")[2].split()
    # A process that was killed and not yet waited for still has an entry, as a zombie.
    return None if fields[0] in "ZX" else int(fields[19])


def renew(txn: Txn, session: SessionRecord, lease: Lease, *, now: datetime, ttl: float) -> Lease:
    """Write the lease anew with a later end; raises ``StaleLease`` if it is no longer valid."""
    now_valid = txn.lease(session.number, lease.actor)
    if now_valid is None or now_valid.released or now_valid.epoch != lease.epoch:
        raise StaleLease(
            f"The lease of {lease.actor!r} in session {session.name!r} was taken by "
            f"{now_valid.holder if now_valid else 'another writer'}."
        )
    renewed = msgspec.structs.replace(lease, expires=now + timedelta(seconds=ttl))
    txn.put_lease(session.number, renewed)
    return renewed


def valid(view: View, session: SessionRecord, actor: str, epoch: int) -> Lease:
    """Return the lease of an actor if it has that epoch still; raises ``StaleLease``."""
    lease = view.lease(session.number, actor)
    if lease is None or lease.released or lease.epoch != epoch:
        raise StaleLease(
            f"Epoch {epoch} of {actor!r} in session {session.name!r} is over: "
            f"the lease has epoch {lease.epoch if lease else 0} now."
        )
    return lease


def adopt(txn: Txn, session: SessionRecord, actor: str, epoch: int, expires: datetime) -> Lease:
    """Write this process into a lease that was taken for it; raises ``StaleLease``."""
    valid(txn, session, actor, epoch)
    adopted = Lease(actor, epoch, this_process(), expires)
    txn.put_lease(session.number, adopted)
    return adopted


def release(txn: Txn, session: SessionRecord, lease: Lease) -> None:
    """Mark the lease as given up, unless another writer has it by now."""
    newest = txn.lease(session.number, lease.actor)
    if newest is not None and newest.epoch == lease.epoch:
        txn.put_lease(session.number, msgspec.structs.replace(newest, released=True))
