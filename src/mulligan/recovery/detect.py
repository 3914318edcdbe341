"""Finding what was interrupted: sessions whose supervisor, or whose agents, died at work."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from mulligan.model import Checkpoint, Lease, Point, Task
from mulligan.session import Session
from mulligan.session.components import AGENTS
from mulligan.session.names import SUPERVISOR
from mulligan.session.parts.agents import AT_REST
from mulligan.session.parts.tasks import IN_PROGRESS
from mulligan.session.write import leases
from mulligan.store import Store

RUNNING = "running"
PAUSED = "paused"
FAILED = "failed"

RECOVERY = "recovery"
"""The kind of checkpoints that keep what a crash left."""

LOOKED_AT = 2_000
"""How many of the newest events are searched for calls of tools that never returned."""


class LostAgent(msgspec.Struct, frozen=True):
    """An agent as the interruption left it.

    ``is_alive`` says that a process of it still runs; ``tasks`` are those it was working on.
    """

    name: str
    state: str | None = None
    prompt: str | None = None
    tasks: tuple[str, ...] = ()
    process_id: int | None = None
    is_alive: bool = False
    command: tuple[str, ...] = ()
    directory: str | None = None

    @property
    def is_at_rest(self) -> bool:
        """Whether its process is not expected to run."""
        return self.state in AT_REST


class InDoubt(msgspec.Struct, frozen=True):
    """A call of a tool that was begun and never returned: it may have happened, or not."""

    call: str
    tool: str | None = None
    agent: str | None = None
    seq: int | None = None


class OpenOperation(msgspec.Struct, frozen=True):
    """An operation that was under way: the checkpoint before it, its name and its agent."""

    checkpoint: str
    name: str
    agent: str | None = None


class Interruption(msgspec.Struct, frozen=True):
    """A session that stopped without being told to, and what was going on in it.

    ``restore`` is the point of a restore of files that was under way.
    """

    session: str
    why: str
    is_supervised: bool
    agents: tuple[LostAgent, ...]
    last_event: datetime
    seconds: float
    """How long ago the last event was."""
    checkpoint: Checkpoint | None
    in_doubt: tuple[InDoubt, ...] = ()
    operations: tuple[OpenOperation, ...] = ()
    restore: Point | None = None


def interrupted(store: Store) -> list[Interruption]:
    """Return what was interrupted, in the order in which the sessions were made."""
    found = (interruption(session) for session in store.sessions())
    return [one for one in found if one is not None]


def interruption(session: Session) -> Interruption | None:
    """Return how a session was interrupted; None if it was not.

    To the holder of the supervisor's lease, a session that was running still is interrupted.
    """
    why = reason(session)
    return None if why is None else describe(session, why)


def reason(session: Session) -> str | None:
    """Return why a session counts as interrupted, in a few words; None if it does not.

    Cheap: it reads what supervision remembers, and leases.
    """
    status = session.internal.control("status")
    if status == RUNNING:
        return _supervisor_gone(session)
    if status is None:
        return _agents_gone(session)
    return None


def is_paused(session: Session) -> bool:
    """Whether a session was stopped at a safe point and can be resumed."""
    return session.internal.control("status") == PAUSED and not session.internal.is_held(SUPERVISOR)


def can_be_resumed(session: Session) -> bool:
    """Whether a session is interrupted, paused or failed, and no process runs it."""
    internal = session.internal
    failed = internal.control("status") == FAILED and not internal.is_held(SUPERVISOR)
    return failed or is_paused(session) or reason(session) is not None


def resumable(store: Store) -> list[Session]:
    """Return the interrupted sessions of a store; without any, the paused ones."""
    sessions = store.sessions()
    interrupted = [session for session in sessions if reason(session) is not None]
    return interrupted or [session for session in sessions if is_paused(session)]


def describe(session: Session, why: str) -> Interruption:
    """Return what was going on in a session when it stopped."""
    last = session.updated
    return Interruption(
        session=session.name,
        why=why,
        is_supervised=session.internal.control("status") is not None,
        agents=tuple(_agents(session)),
        last_event=last,
        seconds=max(0.0, (session.internal.clock.now() - last).total_seconds()),
        checkpoint=_latest(session),
        in_doubt=tuple(in_doubt(session)),
        operations=tuple(_operations(session)),
        restore=pending.point if (pending := session.pending) else None,
    )


def in_doubt(session: Session) -> list[InDoubt]:
    """Return the calls of tools that never returned, oldest first."""
    found: dict[str, InDoubt] = {}
    for call, record in _mapping(session.state.get("tools/calls")).items():
        if _mapping(record).get("status") == "called":
            found[call] = _doubt(call, record, None)
    since = max(0, session.head.seq - LOOKED_AT)
    for event in session.events(since=since or None):
        if event.kind == "tool.called":
            call = str(event.payload.get("call"))
            found[call] = _doubt(call, {"agent": event.actor, **event.payload}, event.seq)
        elif event.kind == "tool.returned":
            found.pop(str(event.payload.get("call")), None)
    return list(found.values())


def gone(lease: Lease | None, now: datetime) -> bool:
    """Whether the holder of a lease went away without giving it up.

    A process of this machine is asked for; one of another counts once its lease is over.
    """
    if lease is None or lease.released:
        return False
    if not leases.is_local(lease.holder):
        return lease.expires <= now
    return leases.is_dead(lease.holder)


def _supervisor_gone(session: Session) -> str | None:
    if session.lease is not None and session.actor == SUPERVISOR:
        return "its supervisor is gone"  # this handle could not hold its lease otherwise
    if session.internal.is_held(SUPERVISOR):
        return None
    lease = session.internal.lease_of(SUPERVISOR)
    if lease is None:
        return "it has no supervisor any more"
    what = "is dead" if leases.is_dead(lease.holder) else "gave no sign of life for too long"
    return f"its supervisor, process {lease.holder.process}, {what}"


def _agents_gone(session: Session) -> str | None:
    now = session.internal.lease_time()
    known = _mapping(session.state.get(AGENTS))
    busy = [name for name, record in known.items() if _mapping(record).get("state") not in AT_REST]
    lost = [name for name in busy if gone(session.internal.lease_of(name), now)]
    if not lost:
        return None
    names = ", ".join(lost)
    return f"the process of {names} is dead" if len(lost) == 1 else f"{names} are dead"


def _agents(session: Session) -> Iterable[LostAgent]:
    tasks = [task for task in session.tasks if task.status == IN_PROGRESS]
    for name, record in _mapping(session.state.get(AGENTS)).items():
        yield lost_agent(session, name, _mapping(record), tasks)


def lost_agent(
    session: Session, name: str, record: dict[str, Any], tasks: Iterable[Task]
) -> LostAgent:
    """Return what an agent's record and its lease say of it."""
    pid = record.get("process_id")
    return LostAgent(
        name=name,
        state=_text(record.get("state")),
        prompt=_text(record.get("current_prompt")),
        tasks=tuple(task.id for task in tasks if task.owner == name),
        process_id=pid if isinstance(pid, int) else None,
        is_alive=is_alive(session, name, record),
        command=tuple(map(str, record.get("command") or ())),
        directory=_text(record.get("directory")),
    )


def is_alive(session: Session, name: str, record: dict[str, Any]) -> bool:
    """Whether a process of an agent runs: the one that was written down, or its lease's holder.

    A lease that the supervisor took, and no process of the agent made its own, says nothing.
    """
    if is_same_process(record.get("process_id"), record.get("identity")):
        return True
    lease = session.internal.lease_of(name)
    if lease is None or lease.released or gone(lease, session.internal.lease_time()):
        return False
    above = (
        None
        if session.internal.control("status") is None
        else session.internal.lease_of(SUPERVISOR)
    )
    return above is None or lease.holder != above.holder


def is_same_process(pid: Any, identity: Any) -> bool:
    """Whether a process that was written down still runs, and is not another of its number.

    One that was gone before its start could be noted has none, and is gone for good.
    """
    if not isinstance(pid, int) or not isinstance(identity, str) or identity.endswith("/0"):
        return False
    return leases.identity(pid) == identity


def _operations(session: Session) -> Iterable[OpenOperation]:
    for checkpoint, record in _mapping(session.internal.control("operations")).items():
        known = _mapping(record)
        yield OpenOperation(checkpoint, str(known.get("name")), _text(known.get("agent")))


def _latest(session: Session) -> Checkpoint | None:
    """Return the newest checkpoint that is neither a safety one nor of an earlier crash."""
    taken = [c for c in session.checkpoints() if not c.safety and c.kind != RECOVERY]
    return taken[-1] if taken else None


def _doubt(call: str, record: Any, seq: int | None) -> InDoubt:
    known = _mapping(record)
    tool = known.get("tool", known.get("name"))
    return InDoubt(call, _text(tool), _text(known.get("agent")), seq)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _mapping(value: Any) -> dict[str, Any]:
    """Return the value where it is a dict; a user may have put anything there."""
    return value if isinstance(value, dict) else {}
