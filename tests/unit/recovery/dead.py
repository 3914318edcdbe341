"""Leases of processes that are no more."""

from __future__ import annotations

import os
from datetime import timedelta

from mulligan import Session, Store
from mulligan.model import Holder, Lease

GONE = Holder(os.uname().nodename, 2**22 + 1, 1)
"""A process that never was: the number is larger than any."""

ELSEWHERE = Holder("another-host", 1, 1)


def dead(session: Session, actor: str, holder: Holder = GONE, *, seconds: float = 30) -> None:
    """Let the lease of an actor be held by a process that died."""
    before = session.internal.lease_of(actor)
    epoch = before.epoch + 1 if before else 1
    expires = session.internal.clock.now() + timedelta(seconds=seconds)
    with session._engine.write() as txn:
        txn.put_lease(session._record.number, Lease(actor, epoch, holder, expires))


def control(session: Session, path: str, value: object) -> None:
    """Let supervision remember something."""
    from mulligan.document.fold import event_change
    from mulligan.document.values import freeze, parse_path

    change = [list(parse_path(path)), freeze(value)]
    session.internal.commit_events(
        lambda _: [event_change("orchestrator.changed", control=[change])]
    )


def team(store: Store, *agents: str, plan: tuple[str, ...] = ()) -> Session:
    """A supervised session at work, whose supervisor and agents died."""
    session = store.session("run")
    workflow = {"session": "run", "agents": {name: {"command": ["work"]} for name in agents}}
    session.internal.state.set("orchestrator", {"workflow": workflow})
    session.tasks.plan(plan)
    for name in agents:
        own = store.session("run", actor=name)
        own.agent.update(state="working", prompt=f"do {name}", process_id=2**22 + 1)
        own.tasks.claim()
        dead(session, name)
    control(session, "status", "running")
    dead(session, "supervisor")
    return session
