"""Leases: one live writer for an actor, and an epoch that shuts out the ones before it."""

from __future__ import annotations

import os
from datetime import datetime, timedelta

import msgspec

from mulligan import procfs
from mulligan.errors import LeaseHeld, StaleLease
from mulligan.journal.protocol import Txn, View
from mulligan.model import Holder, Lease, SessionRecord
from mulligan.session.names import check_agent
from mulligan.timeline.times import shown


def this_process() -> str:
    """Return what identifies this process among all that ever ran: host, pid, start time."""
    return str(this_holder())


def identity(pid: int) -> str:
    """Return what identifies a process of this machine: host, pid, start time."""
    return str(_holder(pid))


def this_holder() -> Holder:
    """Return this process, as the leases that it takes name it."""
    return _holder(os.getpid())


def _holder(pid: int) -> Holder:
    return Holder(os.uname().nodename, pid, procfs.started(pid) or 0)


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
        # In the transaction that takes the lease: a supervisor that was replaced a moment ago can
        # no longer take leases for its agents.
        valid(txn, session, under.actor, under.epoch)
    before = txn.lease(session.number, actor)
    if before is None:
        check_agent(actor)  # a session of an earlier version may have an agent of such a name
    if before is not None and not steal and is_held(before, now):
        raise LeaseHeld(
            f"{actor!r} in session {session.name!r} is held by {before.holder} "
            f"until {shown(before.expires)}."
        )
    # The epoch is the fencing token: every append checks it, so that a writer which only seemed to
    # be gone cannot write any more.
    epoch = before.epoch + 1 if before else 1
    lease = Lease(actor, epoch, this_holder(), now + timedelta(seconds=ttl))
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


def is_dead(holder: Holder) -> bool:
    """Whether the process is known to be gone; one of another machine, or unnamed, never is."""
    if process_of(holder) is None:
        return False
    return procfs.started(holder.process) != (holder.started or None)


def is_local(holder: Holder) -> bool:
    """Whether a holder is of this machine, so that its process can be looked at."""
    return holder.machine == os.uname().nodename


def process_of(holder: Holder) -> int | None:
    """Return the process that is named; None if it is on another machine, or has no name."""
    return holder.process if holder.process and is_local(holder) else None


def renew(txn: Txn, session: SessionRecord, lease: Lease, *, now: datetime, ttl: float) -> Lease:
    """Extend the lease; raises ``StaleLease`` if it is no longer valid."""
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
    adopted = Lease(actor, epoch, this_holder(), expires)
    txn.put_lease(session.number, adopted)
    return adopted


def release(txn: Txn, session: SessionRecord, lease: Lease) -> None:
    """Mark the lease as given up, unless another writer has it by now."""
    newest = txn.lease(session.number, lease.actor)
    if newest is not None and newest.epoch == lease.epoch:
        txn.put_lease(session.number, msgspec.structs.replace(newest, released=True))
