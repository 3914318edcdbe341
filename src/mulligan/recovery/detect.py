"""Finding what was interrupted: sessions whose supervisor, or whose agents, died at work."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.decoding import ready
from mulligan.model import Checkpoint, Effect, Holder, Lease, Point, Task, ToolCall
from mulligan.procfs import is_stopped
from mulligan.session.components import AGENTS
from mulligan.session.names import SUPERVISOR
from mulligan.session.parts.agents import AT_REST
from mulligan.session.parts.tasks import IN_PROGRESS
from mulligan.session.write import leases

if TYPE_CHECKING:
    from mulligan.session import Session
    from mulligan.store import Store

RUNNING = "running"
PAUSED = "paused"
FAILED = "failed"
GAVE_UP = "gave_up"

RECOVERY = "recovery"
"""The kind of checkpoints that keep what a crash left."""


class GaveUp(msgspec.Struct, frozen=True):
    """When and why recovery gave up, and which rungs were tried."""

    at: datetime
    why: str
    tried: list[str] = []


class LostAgent(msgspec.Struct, frozen=True):
    """An agent as the interruption left it.

    ``is_alive`` means that one of its processes still runs; ``tasks`` are those it worked on.
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
    """A tool call that started and never returned: it may have taken effect, or not.

    ``files`` are the paths that changed since it started, None where that is not known. ``process``
    is a process that it started and that still runs.
    """

    call: str
    tool: str | None = None
    agent: str | None = None
    seq: int | None = None
    files: tuple[str, ...] | None = None
    process: int | None = None


class OpenOperation(msgspec.Struct, frozen=True):
    """An operation that was in progress: the checkpoint before it, its name and its agent."""

    checkpoint: str
    name: str
    agent: str | None = None


class Interruption(msgspec.Struct, frozen=True):
    """A session that stopped without being told to, and what was in progress.

    ``restore`` is the target of a restore of files that was in progress.
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
    effects: tuple[Effect, ...] = ()
    """The effects in doubt, and those that wait for approval."""
    operations: tuple[OpenOperation, ...] = ()
    restore: Point | None = None


def interrupted(store: Store) -> list[Interruption]:
    """Return what was interrupted, in the order in which the sessions were made."""
    found = (interruption(session) for session in store.sessions())
    return [one for one in found if one is not None]


def interruption(session: Session) -> Interruption | None:
    """Return how a session was interrupted; None if it was not.

    For the holder of the supervisor's lease, a session that is recorded as running was interrupted.
    """
    why = reason(session)
    return None if why is None else describe(session, why)


def reason(session: Session) -> str | None:
    """Return why a session counts as interrupted, in a few words; None if it does not.

    Cheap: it reads only the supervisor's records and leases.
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
    """Return what was in progress in a session when it stopped."""
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
        effects=tuple(open_effects(session)),
        operations=tuple(_operations(session)),
        restore=pending.point if (pending := session.files.pending) else None,
    )


def in_doubt(session: Session) -> list[InDoubt]:
    """Return the calls of tools that never returned, oldest first."""
    if not session.internal.has_acts:
        return []
    return [_doubt(session, call) for call in session.tools.list(in_doubt=True)]


def open_effects(session: Session) -> list[Effect]:
    """Return the effects in doubt, and those that wait for approval, oldest first."""
    if not session.internal.has_acts:
        return []
    return list(session.effects.list(pending=True, in_doubt=True))


def _doubt(session: Session, call: ToolCall) -> InDoubt:
    from mulligan.session.parts.tools import is_running  # slow to import, and seldom needed

    changed = None if call.seq is None else session.internal.changed_files(call.seq)
    return InDoubt(
        call.id,
        call.name or None,
        call.agent,
        call.seq,
        files=None if changed is None else tuple(changed),
        process=Holder.parse(call.process or "").process if is_running(call) else None,
    )


def gone(lease: Lease | None, now: datetime) -> bool:
    """Whether the holder of a lease died without releasing it.

    A process of this machine is looked up; one of another machine counts as dead once its lease has
    expired.
    """
    if lease is None or lease.released:
        return False
    # Processes of another machine cannot be examined, so only the expiry of the lease counts.
    if not leases.is_local(lease.holder):
        return lease.expires <= now
    return leases.is_dead(lease.holder)


def _supervisor_gone(session: Session) -> str | None:
    if session.agent.lease is not None and session.actor == SUPERVISOR:
        return "its supervisor is gone"  # this handle could not hold its lease otherwise
    # The lease decides, not the recorded status, which a killed supervisor could not change.
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
    """Return an agent as its record and its lease describe it."""
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
    """Whether a process of an agent runs: the recorded one, or its lease's holder.

    A lease that the supervisor took and the agent never adopted proves nothing.
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
    """Whether a recorded process still runs, and is not another one with the same pid.

    Without a recorded start time, it ended before that could be read.
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


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _mapping(value: Any) -> dict[str, Any]:
    """Return the value if it is a dict; a user may have stored anything there."""
    return value if isinstance(value, dict) else {}


def gave_up(session: Session) -> GaveUp | None:
    """Return why recovery gave up; None if it did not, or the session was resumed since."""
    found = session.internal.control(GAVE_UP)
    return None if found is None else msgspec.convert(found, ready(GaveUp))


def stopped_supervisor(session: Session) -> int | None:
    """Return the pid of the supervisor if it is stopped (SIGSTOP), else None."""
    found = supervisor_of(session)
    pid = None if found is None else leases.process_of(found)
    return pid if pid is not None and is_stopped(pid) else None


def supervisor_of(session: Session) -> Holder | None:
    """Return the supervisor process that runs a session."""
    lease = session.internal.lease_of(SUPERVISOR)
    if lease is None or not session.internal.is_held(SUPERVISOR):
        return None
    return lease.holder
