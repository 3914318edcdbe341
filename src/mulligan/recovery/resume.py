"""Resuming: keep what the crash left, restore what the plan says, make the session ready.

There are four transactions: the attempt is recorded; a recovery checkpoint keeps state and files as
they are; the restore, if there is one, restores shared state, files, orchestrator and agents at
once; and the last one makes tasks, mailboxes and process records consistent. After a crash in
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

from mulligan.attempts import remembered
from mulligan.decoding import ready
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import CONTROL, STATE, Change, event_change
from mulligan.document.values import freeze, parse_path
from mulligan.errors import (
    LeaseHeld,
    LeftBehind,
    MulliganError,
    RecoveryStopped,
    RestoreIncomplete,
    StillRunning,
)
from mulligan.model import Checkpoint, Lease, Path, Restored
from mulligan.recovery import ladder
from mulligan.recovery.detect import GAVE_UP, RECOVERY, GaveUp
from mulligan.recovery.ladder import Attempt, LadderLimits
from mulligan.recovery.plan import (
    ENDED,
    RECOVERIES,
    WORKFLOW,
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
from mulligan.session.write import ledger
from mulligan.store import LEASE_TTL, Store
from mulligan.timeline.record import RESTORE_ORDER

TTL = 600.0
"""Seconds that a recovery may take; if the process dies, its lease does not block others."""

IDENTITY = ("command", "directory", "environment", "restarts")
"""What a clean start keeps of an agent."""

Changes = list[list[Any]]


class Resumed(msgspec.Struct, frozen=True):
    """What was done: ``checkpoint`` holds what the crash left; ``seq`` is the last event of it.

    ``at`` is when the attempt started, by which it is known among the others.
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
    # Before the first write: a person who does not accept it finds everything as it was.
    refuse_left_behind(plan)
    # First: a process that only seemed dead must not write between the checkpoint and the restore.
    _shut_out(store, session, plan)
    if plan.rung == ladder.STOP:
        failed = _give_up(session, plan)
        times = "once" if len(failed) == 1 else f"{len(failed)} times"
        raise RecoveryStopped(f"Resuming session {plan.session!r} failed {times}.")
    # Recorded before anything changes: a crash from here on counts as a failed attempt, so the
    # ladder climbs instead of repeating it forever.
    at = _begin(session, plan)
    try:
        # Before the restore: what the crash left stays reachable whatever happens next.
        checkpoint = session.checkpoint(RECOVERY, note=_note(plan))
        restored = _restore(session, plan)
        _finish(session, plan, checkpoint, restored)
    except BaseException as error:
        with suppress(MulliganError):  # what went wrong first is what counts
            settle(session, at, ladder.FAILED, f"{type(error).__name__}: {error}")
        raise
    return Resumed(plan, checkpoint, restored, session.head.seq, at)


def refuse_left_behind(plan: ResumePlan) -> None:
    """Raise ``LeftBehind`` if a plan leaves effects behind, and that was not accepted."""
    left = plan.effects.left_behind if plan.effects is not None else ()
    if left and not plan.accepts:
        said = ", ".join(f"{effect.name} ({effect.id})" for effect in left[:5])
        what = "1 effect" if len(left) == 1 else f"{len(left)} effects"
        raise LeftBehind(f"{what} after the point cannot be undone: {said}.")


def try_out(
    session: Session,
    at: datetime,
    run: Callable[[], str],
    limits: LadderLimits = ladder.DEFAULT_LIMITS,
) -> str:
    """Run the recovered agents, and record whether the attempt worked.

    ``run`` returns how the session ended. If it runs long enough, the attempt has worked, even if
    the agents report nothing.
    """
    lived = threading.Timer(limits.settled, _has_lived, (session, at))
    # It must not keep a program from exiting that ends before the time.
    lived.daemon = True
    lived.start()
    try:
        status = run()
    except Exception as error:
        # The first error is the one to report. If the lease is lost, this write is refused too; the
        # next attempt then judges this one by its events.
        with suppress(MulliganError):
            settle(session, at, ladder.FAILED, f"{type(error).__name__}: {error}")
        raise
    finally:
        # Before the verdict: the timer must not report a success while a failure is being written.
        lived.cancel()
    verdict = tried(session, limits)[-1].outcome if status == ladder.FAILED else ladder.OK
    settle(session, at, verdict)
    return status


def _has_lived(session: Session, at: datetime) -> None:
    # If this cannot be written, the team's own writes fail as well, and report it.
    with suppress(MulliganError, OSError):
        settle(session, at, ladder.OK)


def settle(session: Session, at: datetime, outcome: str, error: str | None = None) -> None:
    """Record whether the attempt that started at that time worked or failed.

    Does nothing once another attempt has started.
    """

    def decide(document: Document) -> Iterable[Change]:
        known = _known(document)
        # Identified by its time: the timer of an earlier attempt must not judge a later one.
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

    ``under`` is the supervisor's own lease; raises ``StaleLease`` if that has ended.
    """
    handle = store.session(session, create=False, actor=agent)
    # Taking the lease raises the epoch, which fences out the old processes. It is released at once
    # because the supervisor takes it again for the new process.
    handle.internal.take(LEASE_TTL, steal=True, under=under)
    handle.internal.release()


def _shut_out(store: Store, session: Session, plan: ResumePlan) -> None:
    """Fence the agents of a dead supervisor; if there was none, only dead agents."""
    if plan.interruption is None:
        return
    for agent in plan.interruption.agents:
        lease = session.internal.lease_of(agent.name)
        if lease is None or lease.released:
            continue
        if plan.interruption.is_supervised or not agent.is_alive:
            fence(store, session.name, agent.name, session.agent.lease)


def _begin(session: Session, plan: ResumePlan) -> datetime:
    """Record the attempt before anything is changed; return the time."""
    attempt = Attempt(
        at=session.internal.clock.now(),
        rung=plan.rung,
        outcome=ladder.STARTED,
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
    why = (
        plan.interruption.why if plan.interruption else (errors or ["it could not be resumed"])[-1]
    )
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
    if plan.parts is None:
        restored = session.restore(plan.point, accept_left_behind=plan.accepts)
    else:
        restored = session.internal.roll_back(plan.point, list(plan.parts), plan.only)
    # Agents must not start on half of the files: the attempt counts as failed, and the ladder goes
    # on.
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
    """Make all parts consistent, in the order of a restore, in one transaction."""
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
        # One transaction, so a crash repeats all of it; the order is for readers of the timeline.
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
    """Return the fields of a step's event besides its changes."""
    facts: dict[str, Any] = {"step": name, "to": plan.point.seq if plan.point else None}
    if name == "workspace":
        facts["files"] = restored.files if restored else 0
    return facts


def _shared_state(document: Document, plan: ResumePlan, mailbox: dict[str, Any] | None) -> Changes:
    changes: Changes = []
    if plan.is_clean:
        components = document.entries(document.resolved(document.find(STATE)))
        changes += [[[name]] for name in components if component(name).clean_start == "removed"]
        changes += ledger.outside_changes(document, None)
    if mailbox is not None and plan.only is not None:
        found = document.find((*STATE, MAILBOX, plan.only))
        now = {} if found is MISSING else document.plain(found)
        changes.append([[MAILBOX, plan.only], freeze(with_new_mail(mailbox, now))])
    changes += [change for part in plan.reset if (change := _emptied(document, part)) is not None]
    return changes + _released(document, plan)


def _emptied(document: Document, part: str) -> list[Any] | None:
    """Return the change that empties a component."""
    found = document.find((*STATE, part))
    if found is MISSING:
        return None
    plain = document.plain(found)
    return [[part], freeze(type(plain)())] if isinstance(plain, dict | list) else [[part]]


def _released(document: Document, plan: ResumePlan) -> Changes:
    """Return the changes that release tasks whose owners do not return."""
    changes: Changes = []
    for name in plan.release:
        place = (*STATE, TASKS, name)
        found = document.find((*place, "owner"))
        owner = None if found is MISSING else found
        # Compared again in the transaction: a task may have been completed or claimed since the
        # plan was made.
        if document.find((*place, "status")) == IN_PROGRESS and owner == plan.owners.get(name):
            changes.append([[TASKS, name, "status"], PENDING])
            changes.append([[TASKS, name, "owner"], None])
    return changes


def _orchestrator(document: Document, plan: ResumePlan) -> Changes:
    """Keep the record of the team if the point is older than it."""
    path = parse_path(WORKFLOW)
    if plan.workflow is None or document.find((*STATE, *path)) is not MISSING:
        return []
    return [[list(path), freeze(plan.workflow)]]


def _requests(document: Document, plan: ResumePlan) -> Changes:
    """Drop requests to the agents, and the operations that died with them."""
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
    """Return how often agents were restarted; a restore does not change that."""
    found = session.state.at(checkpoint).get(AGENTS)
    records = found if isinstance(found, dict) else {}
    counts = {n: r.get("restarts") for n, r in records.items() if isinstance(r, dict)}
    return {name: count for name, count in counts.items() if isinstance(count, int)}


def _agents(document: Document, plan: ResumePlan, restarts: Mapping[str, int] = {}) -> Changes:
    """Return the records of agents without processes that have ended."""
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
    """Return the agents that were not interrupted: live ones without a supervisor."""
    found = plan.interruption
    if found is None or found.is_supervised:
        return set()
    return {agent.name for agent in found.agents if agent.is_alive}


def _known(document: Document) -> list[Attempt]:
    found = document.find((*CONTROL, RECOVERIES))
    plain = [] if found is MISSING else document.plain(found)
    return msgspec.convert(plain, ready(list[Attempt]))


def _recoveries(known: Iterable[Attempt]) -> Changes:
    plain = [msgspec.to_builtins(attempt, builtin_types=(datetime,)) for attempt in known]
    return [[[RECOVERIES], freeze(plain)]]


def _note(plan: ResumePlan) -> str:
    return f"before recovery: {_why(plan)}"[:500]


def _why(plan: ResumePlan) -> str:
    return plan.interruption.why if plan.interruption else "resumed"
