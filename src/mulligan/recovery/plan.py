"""What resuming a session would do, computed without doing it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from mulligan.decoding import ready
from mulligan.document.document import Document
from mulligan.document.values import freeze
from mulligan.errors import CheckpointPruned, PathNotFound, PointFolded, UnknownPoint
from mulligan.model import EffectPlan, Path, Plan, Point
from mulligan.recovery import ladder
from mulligan.recovery.detect import Interruption, interruption
from mulligan.recovery.ladder import Attempt, LadderLimits, judged, next_rung
from mulligan.recovery.resume_agent import Consumed, check_agent, consumed
from mulligan.session import Session
from mulligan.session.components import AGENTS, COMPONENTS, TASKS
from mulligan.session.names import SUPERVISOR
from mulligan.session.parts.tasks import IN_PROGRESS, Board
from mulligan.session.runtime.rollback import good_checkpoints, own_parts
from mulligan.timeline.points import PointLike

RECOVERIES = "recoveries"
ENDED = "recovery.ended"
WORKFLOW = "orchestrator/workflow"

ASKED = "asked"
"""The rung of an attempt to a point that the caller named."""

NOT_COMING_BACK = ("done", "failed")
"""The states of agents that will not continue what they claimed."""


_OF_RECOVERY = ("recovery.", "checkpoint.", "restore.")


class Choice(msgspec.Struct, frozen=True):
    """The rung that the ladder takes next, and after how many seconds.

    Rungs that have nothing to go back to are already skipped.
    """

    rung: str
    wait: float = 0.0


class ResumePlan(msgspec.Struct, frozen=True):
    """What resuming would do.

    ``point`` is where state and files go back to; None loses nothing. ``only`` is the one agent
    that is restored from there. ``release`` are the tasks whose ``owners`` do not return,
    ``next_task`` is the task to continue with, ``returning`` are the agents that will do it.
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
    """Whether it finishes an attempt that was itself interrupted."""
    effects: EffectPlan | None = None
    """What going back means for the effects after the point."""
    accepts: bool = False
    """Whether effects may be left behind: accepted by the caller, or the ladder goes on alone."""

    @property
    def is_clean(self) -> bool:
        """Whether only the list of tasks is kept."""
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
    the last good checkpoint, ``rung`` does what a rung of the ladder says. ``only`` restores one
    agent's parts from there; ``reset`` names components to empty afterwards. An attempt that was
    itself interrupted is finished, unless something else is requested. ``found`` is the
    interruption, if the caller knows it.
    """
    # An interrupted attempt comes first: its restore may be half done.
    unfinished = _unfinished(session)
    if unfinished and to is None and not rollback and rung is None and only is None and not reset:
        plan = _continued(session, unfinished)
    else:
        if rung is None:
            rung = ASKED if to is not None else ladder.GOOD if rollback else ladder.RETRY
        plan = _plan(session, rung, _point(session, rung, to), only, tuple(reset))
    return msgspec.structs.replace(plan, interruption=found or interruption(session))


def choose(session: Session, limits: LadderLimits = ladder.DEFAULT_LIMITS) -> Choice:
    """Return the next rung; those that have nothing to go back to are skipped.

    An attempt that was itself interrupted is finished first, but only once: it may be what kills
    the process.
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
    """Return the attempts to recover a session, oldest first."""
    return msgspec.convert(session.internal.control(RECOVERIES, []), ready(list[Attempt]))


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


def _signs_of_life(session: Session, attempt: Attempt) -> Iterable[tuple[float, str]]:
    """Yield what agents and their supervisor did after an attempt was prepared, and how long."""
    own = {SUPERVISOR, *_mapping(session.state.get(AGENTS))}
    prepared: datetime | None = None
    for event in session.events(since=attempt.at):
        if prepared is not None and event.actor in own:
            yield (event.time - prepared).total_seconds(), event.kind
        elif event.kind == ENDED:
            prepared = event.time


def _unfinished(session: Session) -> Attempt | None:
    """Return the last attempt if it was interrupted before everything was restored."""
    known = attempts(session)
    if not known or known[-1].outcome != ladder.STARTED:
        return None
    last = known[-1]
    if last.seq is None and last.rung != ladder.CLEAN and not last.reset:
        return None
    since = session.events(since=last.at)
    # Work done since the attempt must not be reverted; folded events may have been work.
    if session.internal.folds_since(last.at):
        return None
    return last if all(event.kind.startswith(_OF_RECOVERY) for event in since) else None


def _resumable(session: Session) -> ResumePlan | None:
    """Return the plan that finishes the last attempt, if it was interrupted, and not twice."""
    attempt = _unfinished(session)
    # Finished only once: an attempt that was interrupted twice may be what kills the process.
    if attempt is None or _was_continued(session):
        return None
    try:
        # The point of the attempt may be gone since: then the ladder chooses another one.
        return _continued(session, attempt)
    except (UnknownPoint, CheckpointPruned, PointFolded, PathNotFound):
        return None


def _can_be_taken(session: Session, rung: str) -> bool:
    try:
        _point(session, rung, None)
    except UnknownPoint:
        return False
    return True


def _was_continued(session: Session) -> bool:
    """Whether the last attempt was to finish the one before it."""
    last = attempts(session)[-2:]
    same = [(a.rung, a.seq, a.session, a.only, a.reset) for a in last]
    return len(last) == 2 and same[0] == same[1] and last[0].outcome != ladder.OK


def _continued(session: Session, attempt: Attempt) -> ResumePlan:
    point = None
    if attempt.seq is not None:
        point = Point(attempt.session or session.name, attempt.seq)
    plan = _plan(session, attempt.rung, point, attempt.only, tuple(attempt.reset))
    # What it leaves behind was accepted when it started.
    return msgspec.structs.replace(plan, continues=True, accepts=True)


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
    """Return the earliest point that the attempts since the last success went back to."""
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
        files=None if point is None else session.files.plan(point),
        workflow=_workflow(session, point),
        effects=None if point is None else _effects(session, point, None),
    )


def _single(
    session: Session, rung: str, point: Point | None, only: str, reset: tuple[str, ...]
) -> ResumePlan:
    """Return the plan that restores one agent and leaves the others as they are."""
    if point is None:
        raise UnknownPoint(
            f"The point to restore {only!r} from is missing.",
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
        effects=_effects(session, point, only),
    )


def _effects(session: Session, point: Point, only: str | None) -> EffectPlan | None:
    """Return what going back means for effects; an agent alone leaves all of its own behind."""
    found = session.effects.plan(point)
    if only is not None:
        every = (*found.left_behind, *found.compensated, *found.repeatable)
        found = EffectPlan(left_behind=tuple(one for one in every if one.agent == only))
    return found or None


def _present(session: Session, point: Point | None, reset: Iterable[str]) -> tuple[str, ...]:
    """Return the components to empty; raises ``PathNotFound`` for an unknown one."""
    now, then = session.state.get(), {} if point is None else session.state.at(point).get()
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
    then = _mapping(session.state.at(point).get(TASKS))
    if parts is None:
        return then
    own = {str(path[1]) for path in parts if path[0] == TASKS}
    return {name: then[name] if name in own else record for name, record in now.items()}


def _returning(session: Session, point: Point | None, *, is_clean: bool) -> tuple[str, ...]:
    """Return the agents that continue: those of the workflow, or else all known ones."""
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
    """Return the team as it was at the point; the present one if there was none yet."""
    found = _at(session, point, WORKFLOW) or session.state.get(WORKFLOW)
    return found if isinstance(found, dict) else None


def _at(session: Session, point: Point | None, path: str) -> Any:
    return session.state.get(path) if point is None else session.state.at(point).get(path)


def _released(tasks: Mapping[str, Any], returning: Iterable[str]) -> dict[str, str | None]:
    """Return the tasks whose owners do not return, with their owners."""
    coming = {*returning}
    return {
        name: record.get("owner")
        for name, record in tasks.items()
        if _mapping(record).get("status") == IN_PROGRESS and record.get("owner") not in coming
    }


def next_task(tasks: Mapping[str, Any]) -> str | None:
    """Return the first task that is not done and that an agent can work on."""
    board = Board(Document({"state": {TASKS: freeze(dict(tasks))}}, _no_objects))
    started = [name for name, record in board.records.items() if record["status"] == IN_PROGRESS]
    ready = board.next_for("")
    names = [*started, *([] if ready is None else [ready])]
    return min(names, key=lambda name: (board.records[name]["order"], name), default=None)


def _no_objects(digest: Any) -> bytes:
    raise AssertionError("plain tasks refer to no objects")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
