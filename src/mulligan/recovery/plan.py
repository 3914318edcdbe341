"""What resuming a session would do, worked out without doing it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from mulligan.document.document import Document
from mulligan.document.values import freeze
from mulligan.errors import PathNotFound, UnknownPoint
from mulligan.model import Checkpoint, Path, Plan, Point
from mulligan.recovery import ladder
from mulligan.recovery.detect import RECOVERY, Interruption, interruption
from mulligan.recovery.ladder import Attempt, LadderLimits, judged, next_rung
from mulligan.recovery.resume_agent import Consumed, check_agent, consumed, own_parts
from mulligan.session import Session
from mulligan.session.components import AGENTS, COMPONENTS, TASKS
from mulligan.session.names import SUPERVISOR
from mulligan.session.parts.tasks import IN_PROGRESS, Board
from mulligan.timeline.marks import BAD
from mulligan.timeline.points import PointLike

RECOVERIES = "recoveries"
GAVE_UP = "gave_up"
ENDED = "recovery.ended"
WORKFLOW = "orchestrator/workflow"

ASKED = "asked"
"""The rung of an attempt to a point that the caller named."""

NOT_COMING_BACK = ("done", "failed")
"""The states of agents that are not expected to go on with what they claimed."""


_OF_RECOVERY = ("recovery.", "checkpoint.", "restore.")


class Choice(msgspec.Struct, frozen=True):
    """The rung that the ladder takes next, and after how many seconds.

    It is one that can be taken: those that have nothing to go back to are passed already.
    """

    rung: str
    wait: float = 0.0


class GaveUp(msgspec.Struct, frozen=True):
    """That recovery gave up: when, why, and which rungs were tried."""

    at: datetime
    why: str
    tried: list[str] = []


class ResumePlan(msgspec.Struct, frozen=True):
    """What resuming would do.

    ``point`` is where state and files go back to; None loses nothing. ``only`` is the one agent
    whose parts come from there. ``release`` are the tasks whose ``owners`` do not come back,
    ``next_task`` is where the work goes on, ``returning`` are the agents that will do it.
    """

    session: str
    rung: str
    interruption: Interruption | None = None
    point: Point | None = None
    only: str | None = None
    parts: tuple[Path, ...] | None = None
    reset: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    """The components to reset that hold nothing."""
    release: tuple[str, ...] = ()
    owners: dict[str, str | None] = {}
    returning: tuple[str, ...] = ()
    next_task: str | None = None
    consumed: tuple[Consumed, ...] = ()
    files: Plan | None = None
    workflow: dict[str, Any] | None = None
    continues: bool = False
    """Whether it finishes an attempt that was interrupted itself."""

    @property
    def is_clean(self) -> bool:
        """Whether everything but the list of tasks is left behind."""
        return self.rung == ladder.CLEAN


def plan_resume(
    session: Session,
    *,
    to: PointLike | None = None,
    rollback: bool = False,
    only: str | None = None,
    reset: Sequence[str] = (),
    rung: str | None = None,
    found: Interruption | None = None,
) -> ResumePlan:
    """Return what resuming a session would do; nothing is changed.

    By default nothing that was acknowledged is lost. ``to`` goes back to a point, ``rollback`` to
    the last good checkpoint, ``rung`` does what a rung of the ladder says. ``only`` brings one
    agent's parts back from there; ``reset`` names components that are emptied afterwards. An
    attempt that was interrupted itself is finished, unless something else is asked for. ``found``
    is the interruption, if it was looked for before.
    """
    unfinished = _unfinished(session)
    if unfinished and to is None and not rollback and rung is None and only is None and not reset:
        plan = _continued(session, unfinished)
    else:
        if rung is None:
            rung = ASKED if to is not None else ladder.GOOD if rollback else ladder.RETRY
        plan = _plan(session, rung, _point(session, rung, to), only, tuple(reset))
    return msgspec.structs.replace(plan, interruption=found or interruption(session))


def choose(session: Session, limits: LadderLimits = ladder.DEFAULT_LIMITS) -> Choice:
    """Return the rung that is taken next; one that has nothing to go back to is passed.

    An attempt that was interrupted itself is finished first; once, for it may be what kills.
    """
    step = next_rung(tried(session, limits), session.internal.clock.now(), limits)
    if step.rung != ladder.STOP and (plan := _resumable(session)) is not None:
        return Choice(plan.rung, step.wait)
    rungs = ladder.RUNGS[ladder.RUNGS.index(step.rung) :]
    return Choice(next(rung for rung in rungs if _can_be_taken(session, rung)), step.wait)


def plan_rung(session: Session, rung: str, *, found: Interruption | None = None) -> ResumePlan:
    """Return the plan of a rung that ``choose`` chose: that one, and no other."""
    plan = None if rung == ladder.STOP else _resumable(session)
    if plan is None or plan.rung != rung:
        return plan_resume(session, rung=rung, found=found)
    return msgspec.structs.replace(plan, interruption=found or interruption(session))


def plan_next(
    session: Session,
    limits: LadderLimits = ladder.DEFAULT_LIMITS,
    *,
    found: Interruption | None = None,
) -> ResumePlan:
    """Return the plan of the ladder's next rung."""
    return plan_rung(session, choose(session, limits).rung, found=found)


def attempts(session: Session) -> list[Attempt]:
    """Return the attempts to bring a session back, oldest first."""
    return msgspec.convert(session.internal.control(RECOVERIES, []), list[Attempt])


def gave_up(session: Session) -> GaveUp | None:
    """Return why recovery gave up; None if it did not, or the session was resumed since."""
    found = session.internal.control(GAVE_UP)
    return None if found is None else msgspec.convert(found, GaveUp)


def tried(session: Session, limits: LadderLimits = ladder.DEFAULT_LIMITS) -> list[Attempt]:
    """Return the attempts with a verdict on the last one, now that the session has stopped.

    Only events of the supervisor and the agents count as signs that the session ran.
    """
    known = attempts(session)
    if known and known[-1].outcome == ladder.PREPARED:
        for lived, kind in _signs_of_life(session, known[-1]):
            verdict = judged(known, lived, limits, progressed=kind == "task.completed")
            if verdict[-1].outcome == ladder.OK:
                return verdict
    return judged(known, 0.0, limits)


def good_checkpoints(session: Session) -> list[Checkpoint]:
    """Return the checkpoints that a rollback may go to, the best first.

    Those marked good, newest first. Without any: all that are not marked bad, and are neither
    safety nor recovery checkpoints.
    """
    marks = {name: mark.verdict for name, mark in session.marks().items()}
    taken = session.checkpoints()[::-1]
    good = [c for c in taken if marks.get(c.id) == ladder.GOOD]
    return good or [
        c for c in taken if not c.safety and c.kind != RECOVERY and marks.get(c.id) != BAD
    ]


def _signs_of_life(session: Session, attempt: Attempt) -> Iterable[tuple[float, str]]:
    """Yield what agents and their supervisor did after an attempt was prepared, and how long."""
    own = {SUPERVISOR, *_mapping(session.state.get(AGENTS))}
    prepared: datetime | None = None
    for event in session.events(since=session.point(attempt.at)):
        if prepared is not None and event.actor in own:
            yield (event.time - prepared).total_seconds(), event.kind
        elif event.kind == ENDED:
            prepared = event.time


def _unfinished(session: Session) -> Attempt | None:
    """Return the last attempt if it was interrupted before everything was restored."""
    known = attempts(session)
    if not known or known[-1].outcome != ladder.BEGUN:
        return None
    last = known[-1]
    if last.seq is None and last.rung != ladder.CLEAN and not last.reset:
        return None
    since = session.events(since=session.point(last.at))
    # Work that was done since the attempt must not be reverted.
    return last if all(event.kind.startswith(_OF_RECOVERY) for event in since) else None


def _resumable(session: Session) -> ResumePlan | None:
    """Return the plan that finishes the last attempt, if it was interrupted, and not twice."""
    attempt = _unfinished(session)
    if attempt is None or _was_continued(session):
        return None
    try:
        return _continued(session, attempt)
    except (UnknownPoint, PathNotFound):
        return None


def _can_be_taken(session: Session, rung: str) -> bool:
    try:
        _point(session, rung, None)
    except UnknownPoint:
        return False
    return True


def _was_continued(session: Session) -> bool:
    """Whether the last attempt did what the one before it had not finished."""
    last = attempts(session)[-2:]
    same = [(a.rung, a.seq, a.session, a.only, a.reset) for a in last]
    return len(last) == 2 and same[0] == same[1] and last[0].outcome != ladder.OK


def _continued(session: Session, attempt: Attempt) -> ResumePlan:
    point = None
    if attempt.seq is not None:
        point = Point(attempt.session or session.name, attempt.seq)
    plan = _plan(session, attempt.rung, point, attempt.only, tuple(attempt.reset))
    return msgspec.structs.replace(plan, continues=True)


def _point(session: Session, rung: str, to: PointLike | None) -> Point | None:
    if to is not None:
        return session.point(to)
    if rung not in (ladder.GOOD, ladder.OLDER):
        return None
    before = _gone_back_to(session) if rung == ladder.OLDER else None
    for checkpoint in good_checkpoints(session):
        if before is None or checkpoint.seq < before:
            return Point(session.name, checkpoint.seq, checkpoint.id)
    what = "an older good checkpoint" if before is not None else "a checkpoint"
    raise UnknownPoint(
        f"Session {session.name!r} does not have {what} to go back to.",
        hint="Resume it without --rollback: nothing is lost.",
    )


def _gone_back_to(session: Session) -> int | None:
    """Return the earliest place that the attempts since the last success went back to."""
    seqs = [a.seq for a in ladder.climbed(tried(session)) if a.seq is not None]
    return min(seqs, default=None)


def _plan(
    session: Session, rung: str, point: Point | None, only: str | None, reset: tuple[str, ...]
) -> ResumePlan:
    if only is not None:
        return _single(session, rung, point, only, reset)
    present = _present(session, point, reset)
    tasks = {} if TASKS in present else _tasks_after(session, point, None)
    returning = _returning(session, point, is_clean=rung == ladder.CLEAN)
    owners = _released(tasks, () if rung == ladder.CLEAN else returning)
    return ResumePlan(
        session=session.name,
        rung=rung,
        point=point,
        reset=present,
        absent=_absent(reset, present),
        release=tuple(owners),
        owners=owners,
        returning=returning,
        next_task=next_task(tasks),
        files=None if point is None else session.plan(point),
        workflow=_workflow(session, point),
    )


def _single(
    session: Session, rung: str, point: Point | None, only: str, reset: tuple[str, ...]
) -> ResumePlan:
    """Return the plan that brings one agent back and leaves the others as they are."""
    if point is None:
        raise UnknownPoint(
            f"From which point is {only!r} to be brought back?",
            hint="--from POINT names it, --rollback takes the last good checkpoint.",
        )
    check_agent(session, only, point)
    present = _present(session, None, reset)
    parts = tuple(own_parts(session, only, point))
    tasks = {} if TASKS in present else _tasks_after(session, point, parts)
    returning = _returning(session, None, is_clean=False)
    owners = _released(tasks, {*returning, only})
    return ResumePlan(
        session=session.name,
        rung=rung,
        point=point,
        only=only,
        parts=parts,
        reset=present,
        absent=_absent(reset, present),
        release=tuple(owners),
        owners=owners,
        returning=returning,
        next_task=next_task(tasks),
        consumed=tuple(consumed(session, only, point)),
        workflow=_workflow(session, None),
    )


def _present(session: Session, point: Point | None, reset: Iterable[str]) -> tuple[str, ...]:
    """Return which components there are to empty; raises ``PathNotFound`` for a name of none."""
    now, then = session.state.get(), {} if point is None else session.state_at(point)
    for part in reset:
        if part not in now and part not in then and part not in COMPONENTS:
            raise PathNotFound(
                f"There is no component {part!r} to reset.",
                hint=f"Name one of: {', '.join(sorted({*now, *COMPONENTS}))}.",
            )
    return tuple(part for part in reset if part in now or part in then)


def _absent(reset: Iterable[str], present: Iterable[str]) -> tuple[str, ...]:
    return tuple(part for part in reset if part not in present)


def _tasks_after(
    session: Session, point: Point | None, parts: Iterable[Path] | None
) -> dict[str, Any]:
    """Return the tasks as they are once everything is restored."""
    now = _mapping(session.state.get(TASKS))
    if point is None:
        return now
    then = _mapping(session.state_at(point, TASKS))
    if parts is None:
        return then
    own = {str(path[1]) for path in parts if path[0] == TASKS}
    return {name: then[name] if name in own else record for name, record in now.items()}


def _returning(session: Session, point: Point | None, *, is_clean: bool) -> tuple[str, ...]:
    """Return the agents that go on: those of the workflow, or else those that ever were."""
    records = _mapping(_at(session, point, AGENTS))
    workflow = _workflow(session, point)
    names = records if workflow is None else _mapping(workflow.get("agents"))
    if is_clean:
        return tuple(names)
    states = {name: _mapping(records.get(name)).get("state") for name in names}
    return tuple(name for name, state in states.items() if state not in NOT_COMING_BACK)


def team_of(session: Session) -> dict[str, Any] | None:
    """Return the workflow that a supervisor last ran in a session; None if none did."""
    found = session.state.get(WORKFLOW)
    return found if isinstance(found, dict) else None


def _workflow(session: Session, point: Point | None) -> dict[str, Any] | None:
    """Return the team as it was at the point; one that was not there yet is that of now."""
    found = _at(session, point, WORKFLOW) or session.state.get(WORKFLOW)
    return found if isinstance(found, dict) else None


def _at(session: Session, point: Point | None, path: str) -> Any:
    return session.state.get(path) if point is None else session.state_at(point, path)


def _released(tasks: Mapping[str, Any], returning: Iterable[str]) -> dict[str, str | None]:
    """Return the tasks whose owners do not come back, with who that is."""
    coming = {*returning}
    return {
        name: record.get("owner")
        for name, record in tasks.items()
        if _mapping(record).get("status") == IN_PROGRESS and record.get("owner") not in coming
    }


def next_task(tasks: Mapping[str, Any]) -> str | None:
    """Return the first task that is not done and that an agent can work on."""
    board = Board(Document({"state": {TASKS: freeze(dict(tasks))}}, _no_objects))
    begun = [name for name, record in board.records.items() if record["status"] == IN_PROGRESS]
    ready = board.next_for("")
    names = [*begun, *([] if ready is None else [ready])]
    return min(names, key=lambda name: (board.records[name]["order"], name), default=None)


def _no_objects(digest: Any) -> bytes:
    raise AssertionError("plain tasks refer to no objects")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
