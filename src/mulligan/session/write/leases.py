"""Leases: one live writer per actor, and an epoch, the fencing token, that refuses earlier ones."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from mulligan import procfs
from mulligan.errors import LeaseHeld, StaleLease
from mulligan.model import Holder, Lease, SessionRecord
from mulligan.session.names import check_agent
from mulligan.timeline.times import shown

if TYPE_CHECKING:
    from mulligan.journal.protocol import Txn, View


def this_process() -> str:
    """Return a unique name of this process: host, pid, start time."""
    return str(this_holder())


def identity(pid: int) -> str:
    """Return a unique name of a process of this machine: host, pid, start time."""
    return str(_holder(pid))


def this_holder() -> Holder:
    """Return this process, as the leases that it takes name it."""
    return _holder(os.getpid())


def holder_of(process: int) -> Holder:
    """Return a process of this machine that runs; raises ``StaleLease`` if it does not."""
    found = _holder(process)
    # Without a start time it could not be told from a later process of the same number.
    if not found.started:
        raise StaleLease(
            f"No lease can be held for process {process}: it does not run.",
            hint="Nothing was written. `mulligan resume` brings an interrupted session back.",
        )
    return found


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
    holder: Holder | None = None,
) -> Lease:
    """Write a lease with the next epoch; raises ``LeaseHeld`` while another writer is alive.

    ``under`` is the lease that permits taking this one, such as a supervisor's for its agents;
    raises ``StaleLease`` if it has ended. ``holder`` is another process that it is taken for: if
    that one holds it already, the lease keeps its epoch and is extended.
    """
    if under is not None:
        # In the transaction that takes the lease: a supervisor that was replaced a moment ago can
        # no longer take leases for its agents.
        valid(txn, session, under.actor, under.epoch)
    before = txn.lease(session.number, actor)
    if before is None:
        check_agent(actor)  # a session of an earlier version may have an agent of such a name
    if before is not None and holder is not None and is_of(before, holder):
        # The same epoch: another process may be writing for that holder at this moment.
        return renew(txn, session, before, now=now, ttl=ttl)
    if before is not None and not steal and is_held(before, now):
        raise LeaseHeld(
            f"{actor!r} in session {session.name!r} is held by {before.holder.words} "
            f"until {shown(before.expires)}."
        )
    # The epoch is the fencing token: every append checks it, so that a writer that only seemed dead
    # cannot write any more.
    epoch = before.epoch + 1 if before else 1
    lease = Lease(actor, epoch, holder or this_holder(), now + timedelta(seconds=ttl))
    txn.put_lease(session.number, lease)
    return lease


def is_of(lease: Lease, holder: Holder) -> bool:
    """Whether a process holds a lease that was not released."""
    return not lease.released and lease.holder == holder


def release_dead(txn: Txn, session: SessionRecord, actor: str) -> None:
    """Release the lease of an actor whose holder is known to be dead.

    An expired lease stays: its holder may be busy, and may write again unless it was replaced.
    """
    lease = txn.lease(session.number, actor)
    # Known to be dead, not only expired: the append that follows would be refused otherwise, though
    # no process can hold the lease any more.
    if lease is not None and not lease.released and is_dead(lease.holder):
        txn.put_lease(session.number, msgspec.structs.replace(lease, released=True))


def is_held(lease: Lease, now: datetime) -> bool:
    """Whether a lease is held by a process that is not known to be dead."""
    return not lease.released and lease.expires > now and not is_dead(lease.holder)


def is_dead(holder: Holder) -> bool:
    """Whether the process is known to be dead; a process of another machine never is."""
    if process_of(holder) is None:
        return False
    # The start time tells a process from a later one that got the same number.
    return procfs.started(holder.process) != (holder.started or None)


def is_local(holder: Holder) -> bool:
    """Whether a holder is on this machine, so that its process can be examined."""
    return holder.machine == os.uname().nodename


def process_of(holder: Holder) -> int | None:
    """Return the named process; None if it is on another machine, or has no name."""
    return holder.process if holder.process and is_local(holder) else None


def renew(txn: Txn, session: SessionRecord, lease: Lease, *, now: datetime, ttl: float) -> Lease:
    """Extend the lease; raises ``StaleLease`` if it is no longer valid."""
    # The epoch decides, not the time: a holder that was only slow may go on as long as no other
    # process has taken the lease.
    now_valid = txn.lease(session.number, lease.actor)
    if now_valid is None or now_valid.released or now_valid.epoch != lease.epoch:
        raise StaleLease(
            f"The lease of {lease.actor!r} in session {session.name!r} was taken by "
            f"{now_valid.holder.words if now_valid else 'another writer'}."
        )
    renewed = msgspec.structs.replace(lease, expires=now + timedelta(seconds=ttl))
    txn.put_lease(session.number, renewed)
    return renewed


def valid(view: View, session: SessionRecord, actor: str, epoch: int) -> Lease:
    """Return the lease of an actor if it still has that epoch; raises ``StaleLease``."""
    lease = view.lease(session.number, actor)
    if lease is None or lease.released or lease.epoch != epoch:
        raise StaleLease(
            f"Epoch {epoch} of {actor!r} in session {session.name!r} is over: "
            f"the lease has epoch {lease.epoch if lease else 0} now."
        )
    return lease


def adopt(txn: Txn, session: SessionRecord, actor: str, epoch: int, expires: datetime) -> Lease:
    """Write this process into a lease that was taken for it; raises ``StaleLease``."""
    # In the transaction that writes: a lease that was taken over in between must not be adopted.
    valid(txn, session, actor, epoch)
    adopted = Lease(actor, epoch, this_holder(), expires)
    txn.put_lease(session.number, adopted)
    return adopted


def release(txn: Txn, session: SessionRecord, lease: Lease) -> None:
    """Mark the lease as released, unless another writer has it by now."""
    # Compared inside the transaction: a successor may have taken the lease since, and keeps it.
    newest = txn.lease(session.number, lease.actor)
    if newest is not None and newest.epoch == lease.epoch:
        txn.put_lease(session.number, msgspec.structs.replace(newest, released=True))
