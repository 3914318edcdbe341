"""Resuming: keep what the crash left, bring back what the plan says, make the session ready.

Four transactions: the attempt is written down; a recovery checkpoint keeps state and files as
they are; the restore, if there is one, brings shared state, files, orchestrator and agents back at
once; and the last one makes tasks, mailboxes and the records of processes fit. After a crash in
between, the next attempt starts over or finishes this one. The supervisor starts the processes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec

from mulligan.document.document import MISSING, Document
from mulligan.document.fold import CONTROL, STATE, Change, event_change
from mulligan.document.values import freeze, parse_path
from mulligan.errors import (
    LeaseHeld,
    MulliganError,
    RecoveryStopped,
    RestoreIncomplete,
    StillRunning,
)
from mulligan.model import Checkpoint, Lease, Path, Restored
from mulligan.recovery import ladder
from mulligan.recovery.detect import RECOVERY
from mulligan.recovery.ladder import Attempt, LadderLimits, remembered
from mulligan.recovery.plan import (
    ENDED,
    GAVE_UP,
    RECOVERIES,
    WORKFLOW,
    GaveUp,
    ResumePlan,
    tried,
)
from mulligan.recovery.resume_agent import own_mailbox, with_new_mail
from mulligan.session import Session
from mulligan.session.components import AGENTS, MAILBOX, TASKS, component
from mulligan.session.names import SUPERVISOR
from mulligan.session.parts.agents import AT_REST
from mulligan.session.parts.operations import OPERATIONS
from mulligan.session.parts.tasks import IN_PROGRESS, PENDING
from mulligan.store import LEASE_TTL, Store
from mulligan.timeline.record import RESTORE_ORDER

TTL = 600.0
"""Seconds that a recovery may take; a dead process holds no lease, however long it is."""

IDENTITY = ("command", "directory", "environment", "restarts")
"""What a clean start keeps of an agent."""

Changes = list[list[Any]]


class Resumed(msgspec.Struct, frozen=True):
    """What was done: ``checkpoint`` holds what the crash left; ``seq`` is the last event of it.

    ``at`` is when the attempt was begun, by which it is known among the others.
    """

    plan: ResumePlan
    checkpoint: Checkpoint
    restored: Restored | None
    seq: int
    at: datetime


def open_session(
    store: Store,
    name: str,
    workspace: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
) -> Session:
    """Open a session under the supervisor's lease to recover it; raises ``StillRunning``."""
    try:
        return store.agent(
            SUPERVISOR, session=name, create=False, ttl=TTL, workspace=workspace, force=force
        )
    except LeaseHeld as error:
        raise StillRunning(f"Session {name!r} is being run: {error}") from error


def resume(store: Store, session: Session, plan: ResumePlan) -> Resumed:
    """Do what a plan says; afterwards the agents can be started.

    ``session`` holds the supervisor's lease. Earlier processes of the agents are fenced first: from
    then on their writes are refused. On the last rung of the ladder nothing else is done: that
    recovery gave up is recorded, and ``RecoveryStopped`` is raised.
    """
    _shut_out(store, session, plan)
    if plan.rung == ladder.STOP:
        failed = _give_up(session, plan)
        times = "once" if len(failed) == 1 else f"{len(failed)} times"
        raise RecoveryStopped(f"Session {plan.session!r} failed {times} to come back.")
    at = _begin(session, plan)
    try:
        checkpoint = session.checkpoint(RECOVERY, note=_note(plan))
        restored = _restore(session, plan)
        _finish(session, plan, checkpoint, restored)
    except BaseException as error:
        with suppress(MulliganError):  # what went wrong first is what counts
            settle(session, at, ladder.FAILED, f"{type(error).__name__}: {error}")
        raise
    return Resumed(plan, checkpoint, restored, session.head.seq, at)


def try_out(
    session: Session,
    at: datetime,
    run: Callable[[], str],
    limits: LadderLimits = ladder.DEFAULT_LIMITS,
) -> str:
    """Run the agents that were brought back, and write down what became of the attempt.

    ``run`` returns how the session was left. It worked as soon as that takes long enough, also
    where the agents say nothing.
    """
    lived = threading.Timer(limits.settled, _has_lived, (session, at))
    lived.daemon = True
    lived.start()
    try:
        status = run()
    except Exception as error:
        # The first error is the one to report. A lost lease also refuses this write; the next
        # attempt then judges this one by what it left.
        with suppress(MulliganError):
            settle(session, at, ladder.FAILED, f"{type(error).__name__}: {error}")
        raise
    finally:
        lived.cancel()
    verdict = tried(session, limits)[-1].outcome if status == ladder.FAILED else ladder.OK
    settle(session, at, verdict)
    return status


def _has_lived(session: Session, at: datetime) -> None:
    # If that cannot be written the team's own writes fail as well, and say so.
    with suppress(MulliganError, OSError):
        settle(session, at, ladder.OK)


def settle(session: Session, at: datetime, outcome: str, error: str | None = None) -> None:
    """Write down what became of the attempt that was begun at that time: ok or failed.

    Does nothing once another attempt has begun.
    """

    def decide(document: Document) -> Iterable[Change]:
        known = _known(document)
        if not known or known[-1].at != at or known[-1].outcome in (ladder.OK, ladder.FAILED):
            return []
        last = msgspec.structs.replace(known[-1], outcome=outcome, error=error and error[:500])
        return [
            event_change(
                "recovery.settled",
                control=_recoveries([*known[:-1], last]),
                rung=last.rung,
                outcome=outcome,
                error=last.error,
            )
        ]

    session.internal.commit_events(decide)


def fence(store: Store, session: str, agent: str, under: Lease | None = None) -> None:
    """Take and release the lease of an agent: its earlier processes can no longer write.

    ``under`` is the supervisor's own lease; raises ``StaleLease`` if that is over.
    """
    handle = store.session(session, create=False, actor=agent)
    handle.internal.take(LEASE_TTL, steal=True, under=under)
    handle.internal.release()


def _shut_out(store: Store, session: Session, plan: ResumePlan) -> None:
    """Fence the agents of a dead supervisor; where there was none, only dead agents."""
    if plan.interruption is None:
        return
    for agent in plan.interruption.agents:
        lease = session.internal.lease_of(agent.name)
        if lease is None or lease.released:
            continue
        if plan.interruption.is_supervised or not agent.is_alive:
            fence(store, session.name, agent.name, session.lease)


def _begin(session: Session, plan: ResumePlan) -> datetime:
    """Write the attempt down, before anything else is touched; return when that was."""
    attempt = Attempt(
        at=session.internal.clock.now(),
        rung=plan.rung,
        outcome=ladder.BEGUN,
        seq=plan.point.seq if plan.point else None,
        session=plan.point.session if plan.point else None,
        only=plan.only,
        reset=list(plan.reset),
    )
    known = remembered(tried(session), attempt)

    def decide(document: Document) -> Iterable[Change]:
        goes_on = [[[GAVE_UP]]] if _is_there(document, (*CONTROL, GAVE_UP)) else []
        yield event_change(
            "recovery.begun",
            control=[*_recoveries(known), *goes_on],
            rung=plan.rung,
            to=attempt.seq,
            only=plan.only,
            why=_why(plan),
        )

    session.internal.commit_events(decide)
    return attempt.at


def _give_up(session: Session, plan: ResumePlan) -> list[str]:
    """Record that recovery gave up, and return the rungs that were tried."""
    known, now = tried(session), session.internal.clock.now()
    failed = ladder.climbed(known)
    errors = [attempt.error for attempt in failed if attempt.error]
    why = plan.interruption.why if plan.interruption else (errors or ["it failed to come back"])[-1]
    gave_up = GaveUp(now, why, [attempt.rung for attempt in failed])
    stop = Attempt(at=now, rung=ladder.STOP, outcome=ladder.FAILED, error=why[:500])

    def decide(document: Document) -> Iterable[Change]:
        control = [*_recoveries(remembered(known, stop)), *_requests(document, plan)]
        control.append([[GAVE_UP], freeze(msgspec.to_builtins(gave_up, builtin_types=(datetime,)))])
        if _is_there(document, (*CONTROL, "status")):
            control += [[["status"], ladder.FAILED], [["reason"], ladder.FAILED]]
        facts = {"why": why, "tried": gave_up.tried}
        yield event_change("recovery.stopped", _agents(document, plan), control, **facts)

    session.internal.commit_events(decide)
    return gave_up.tried


def _restore(session: Session, plan: ResumePlan) -> Restored | None:
    if plan.point is None:
        return None
    only = None if plan.parts is None else list(plan.parts)
    restored = session.restore(plan.point, only)
    if restored.problems:
        first = restored.problems[0]
        raise RestoreIncomplete(
            f"{len(restored.problems)} paths could not be brought back, "
            f"first {first.where}: {first.detail}."
        )
    return restored


def _finish(
    session: Session, plan: ResumePlan, checkpoint: Checkpoint, restored: Restored | None
) -> None:
    """Make everything fit, step by step in the order of a restore, in one transaction."""
    counts = {} if restored is None else _restarts(session, checkpoint)
    mailbox = None  # not from the plan: others have gone on sending since
    if plan.only is not None and plan.point is not None:
        mailbox = own_mailbox(session, plan.only, plan.point)

    def decide(document: Document) -> Iterable[Change]:
        steps = {
            "shared_state": (_shared_state(document, plan, mailbox), []),
            "workspace": ([], []),
            "orchestrator": (_orchestrator(document, plan), _requests(document, plan)),
            "agents": (_agents(document, plan, counts), []),
        }
        for name in RESTORE_ORDER:
            changes, control = steps[name]
            yield event_change("recovery.step", changes, control, **_facts(name, plan, restored))
        known = _known(document)
        known[-1:] = [msgspec.structs.replace(a, outcome=ladder.PREPARED) for a in known[-1:]]
        yield event_change(
            ENDED,
            control=_recoveries(known),
            checkpoint=checkpoint.id,
            released=list(plan.release),
            next_task=plan.next_task,
        )

    session.internal.commit_events(decide)


def _facts(name: str, plan: ResumePlan, restored: Restored | None) -> dict[str, Any]:
    """Return what the event of a step says besides what it changes."""
    facts: dict[str, Any] = {"step": name, "to": plan.point.seq if plan.point else None}
    if name == "workspace":
        facts["files"] = restored.files if restored else 0
    return facts


def _shared_state(document: Document, plan: ResumePlan, mailbox: dict[str, Any] | None) -> Changes:
    changes: Changes = []
    if plan.is_clean:
        components = document.entries(document.resolved(document.find(STATE)))
        changes += [[[name]] for name in components if component(name).clean_start == "removed"]
    if mailbox is not None and plan.only is not None:
        found = document.find((*STATE, MAILBOX, plan.only))
        now = {} if found is MISSING else document.plain(found)
        changes.append([[MAILBOX, plan.only], freeze(with_new_mail(mailbox, now))])
    changes += [change for part in plan.reset if (change := _emptied(document, part)) is not None]
    return changes + _released(document, plan)


def _emptied(document: Document, part: str) -> list[Any] | None:
    """Return the change that leaves a component with nothing in it."""
    found = document.find((*STATE, part))
    if found is MISSING:
        return None
    plain = document.plain(found)
    return [[part], freeze(type(plain)())] if isinstance(plain, dict | list) else [[part]]


def _released(document: Document, plan: ResumePlan) -> Changes:
    """Return the changes that give tasks back whose owners do not return."""
    changes: Changes = []
    for name in plan.release:
        place = (*STATE, TASKS, name)
        found = document.find((*place, "owner"))
        owner = None if found is MISSING else found
        if document.find((*place, "status")) == IN_PROGRESS and owner == plan.owners.get(name):
            changes.append([[TASKS, name, "status"], PENDING])
            changes.append([[TASKS, name, "owner"], None])
    return changes


def _orchestrator(document: Document, plan: ResumePlan) -> Changes:
    """Keep the team, where the point lies before anybody had said who it is."""
    path = parse_path(WORKFLOW)
    if plan.workflow is None or document.find((*STATE, *path)) is not MISSING:
        return []
    return [[list(path), freeze(plan.workflow)]]


def _requests(document: Document, plan: ResumePlan) -> Changes:
    """Forget what the agents were asked for, and the operations that died with them."""
    changes = [[[p]] for p in ("request", "answers") if _is_there(document, (*CONTROL, p))]
    alive, open_ones = _alive(plan), plan.interruption.operations if plan.interruption else ()
    for operation in open_ones:
        place = (OPERATIONS, operation.checkpoint)
        if operation.agent not in alive and _is_there(document, (*CONTROL, *place)):
            changes.append([list(place)])
    return changes


def _is_there(document: Document, path: Path) -> bool:
    return document.find(path) is not MISSING


def _restarts(session: Session, checkpoint: Checkpoint) -> dict[str, int]:
    """Return how often agents had been restarted; no restore takes that back."""
    found = session.state_at(checkpoint, AGENTS)
    records = found if isinstance(found, dict) else {}
    counts = {n: r.get("restarts") for n, r in records.items() if isinstance(r, dict)}
    return {name: count for name, count in counts.items() if isinstance(count, int)}


def _agents(document: Document, plan: ResumePlan, restarts: Mapping[str, int] = {}) -> Changes:
    """Return the records of agents without processes that are no more."""
    found = document.find((*STATE, AGENTS))
    if found is MISSING:
        return []
    changes: Changes = []
    alive = _alive(plan)
    for name, record in document.entries(document.resolved(found)).items():
        known = document.plain(record)
        if isinstance(known, dict) and name not in alive:
            changes += _without_process(name, known, plan, restarts.get(name))
    return changes


def _without_process(
    name: str, record: dict[str, Any], plan: ResumePlan, restarts: int | None
) -> Changes:
    has_run = "process_id" in record or restarts is not None
    gone = {"process_id": None, "identity": None} if has_run else {}
    if plan.is_clean:
        kept = {key: record[key] for key in IDENTITY if key in record}
        return [[[AGENTS, name], freeze({**kept, **gone, "state": "starting"})]]
    if record.get("state") in AT_REST and plan.only != name:
        return []
    is_started = plan.workflow is not None and plan.rung != ladder.STOP
    state = "waiting" if is_started else "suspended"
    # The supervisor starts it again, so it is no longer interrupted; nothing else records that.
    fields: dict[str, Any] = {"state": state, "last_action": None if is_started else "interrupted"}
    if restarts is not None:
        fields["restarts"] = restarts
    return [[[AGENTS, name, key], value] for key, value in {**fields, **gone}.items()]


def _alive(plan: ResumePlan) -> set[str]:
    """Return the agents that were never interrupted: those without a supervisor that live."""
    found = plan.interruption
    if found is None or found.is_supervised:
        return set()
    return {agent.name for agent in found.agents if agent.is_alive}


def _known(document: Document) -> list[Attempt]:
    found = document.find((*CONTROL, RECOVERIES))
    plain = [] if found is MISSING else document.plain(found)
    return msgspec.convert(plain, list[Attempt])


def _recoveries(known: Iterable[Attempt]) -> Changes:
    plain = [msgspec.to_builtins(attempt, builtin_types=(datetime,)) for attempt in known]
    return [[[RECOVERIES], freeze(plain)]]


def _note(plan: ResumePlan) -> str:
    return f"before recovery: {_why(plan)}"[:500]


def _why(plan: ResumePlan) -> str:
    return plan.interruption.why if plan.interruption else "resumed"
