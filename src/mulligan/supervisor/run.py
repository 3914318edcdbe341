"""Running and resuming sessions as library calls: prepare, hand the lease over, supervise, end.

``run_team`` runs a workflow, ``resume_session`` recovers a session and continues its team,
``preview_resume`` only plans that, and ``ResumeThread`` lets a ``RecoveryWatch`` resume sessions
inside this process. Each call takes the supervisor's lease once and holds it until it returns.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from mulligan.errors import InvalidWorkflow, LeaseHeld, MulliganError, NotAStore, StillRunning
from mulligan.recovery.detect import Interruption, interruption
from mulligan.recovery.ladder import STOP
from mulligan.recovery.plan import ResumePlan, plan_resume, plan_rung, team_of
from mulligan.recovery.resume import Resumed, refuse_left_behind, resume, try_out
from mulligan.recovery.watch import is_due
from mulligan.session import Session
from mulligan.session.parts.tasks import quarantined
from mulligan.store import Store
from mulligan.supervisor.lease import SupervisorLease
from mulligan.supervisor.orphans import end_orphans
from mulligan.supervisor.preflight import preflight
from mulligan.supervisor.runner import supervise
from mulligan.supervisor.signals import requests_ignored
from mulligan.supervisor.team import Show, check_variables
from mulligan.supervisor.terminal import Terminal
from mulligan.supervisor.workflow import Workflow, from_plain, load
from mulligan.timeline.points import PointLike


class RunReporter:
    """Receives reports about a run; does nothing. Override the methods you need."""

    def say(self, line: str) -> None:
        """Take a sentence for people: an agent started, ended, was restarted."""

    def found(self, plan: ResumePlan) -> None:
        """Take what was interrupted, before orphan processes are ended."""

    def planned(self, plan: ResumePlan) -> None:
        """Take what recovery is about to do."""

    def prepared(self, resumed: Resumed) -> None:
        """Take what recovery did, before the agents are started."""

    def output(self, agents: Sequence[str]) -> Show | None:
        """Return the receiver of the agents' output; None lets them print directly."""
        return None


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a team is run.

    The agents inherit ``variables``. ``with_files=False`` leaves the workspace out, ``force``
    accepts a directory that is refused as one. ``output`` is the descriptor that agents print to
    instead of standard output. An agent that is alone reads from ``stdin``, or borrows the
    ``terminal`` when it uses it.
    """

    variables: Mapping[str, str]
    with_files: bool = True
    force: bool = False
    output: int | None = None
    stdin: int | None = None
    terminal: Terminal | None = None
    reporter: RunReporter = RunReporter()


class ResumeChoice(msgspec.Struct, frozen=True, kw_only=True):
    """How a session is recovered; see ``plan_resume``. ``rung`` is one of the ladder's."""

    to: PointLike | None = None
    rollback: bool = False
    only: str | None = None
    reset: tuple[str, ...] = ()
    rung: str | None = None
    accept_left_behind: bool = False

    def plan(self, session: Session, found: Interruption | None) -> ResumePlan:
        """Return what resuming would do; nothing is changed.

        The ladder accepts what it leaves behind: no person is there to ask, and a session that
        stays down helps no one. The journal says so.
        """
        if self.rung is not None:
            plan = plan_rung(session, self.rung, found=found)
            return msgspec.structs.replace(plan, accepts=True)
        plan = plan_resume(
            session,
            to=self.to,
            rollback=self.rollback,
            only=self.only,
            reset=self.reset,
            found=found,
        )
        return msgspec.structs.replace(plan, accepts=plan.accepts or self.accept_left_behind)


class RunOutcome(msgspec.Struct, frozen=True):
    """How a run ended: ``status`` is done, failed or paused.

    ``reason`` says what paused it. ``quarantined`` are the tasks that were given up because they
    ended the processes that worked on them: the team is done, but its work is not. ``resumed`` is
    the recovery that came first, if any.
    """

    session: str
    workflow: Workflow
    status: str
    reason: str | None
    quarantined: tuple[str, ...] = ()
    resumed: Resumed | None = None


class ResumeOutcome(msgspec.Struct, frozen=True):
    """What resuming did; ``run`` is None if no supervisor had started the agents."""

    resumed: Resumed
    run: RunOutcome | None = None


def load_team(file: Path, variables: Mapping[str, str]) -> Workflow:
    """Read a workflow file and check that what it names is there; raises ``InvalidWorkflow``."""
    workflow = load(file)
    preflight(workflow, file, variables)
    return workflow


def run_team(store: Store, name: str, workflow: Workflow, options: RunOptions) -> RunOutcome:
    """Run a team in a session until it is done, failed or paused.

    The session is created if it does not exist. An interrupted one is recovered first, and a paused
    one continues: agents that were done are not started again. In the main thread, signals pause
    the team (see ``supervise``); the program's own handlers are back on return. Raises
    ``LeaseHeld`` while another supervisor runs the session, and ``InvalidWorkflow`` before anything
    is written.
    """
    _check_store(store)
    check_variables(workflow, options.variables)
    _check_paths(workflow)
    # Before the lease is taken, while it still names the process that held it last.
    found = interruption(store.session(name))
    workflow = msgspec.structs.replace(workflow, session=name)
    with requests_ignored(), _take_to_run(store, name) as lease:
        # Read again under the lease: the previous supervisor may have died since the first look.
        found = found or interruption(lease.session)
        resumed = None
        if found is not None and found.is_supervised:
            workspace = None if workflow.workspace is None else Path(workflow.workspace)
            recovery = _Recovery(store, lease, ResumeChoice(), options, workspace)
            resumed = recovery.run(found, same_team=False)
        return _run(store, lease, workflow, options, resumed)


def _check_paths(workflow: Workflow) -> None:
    """Refuse paths and arguments that the state, which is UTF-8, cannot record."""
    try:
        workflow.to_plain()
    except UnicodeEncodeError as error:
        raise InvalidWorkflow(
            f"A path or an argument of the agents is not UTF-8: {error.object!r}.",
            hint="Nothing was started. Agents are recorded with their directory: rename it.",
        ) from error


def resume_session(
    store: Store,
    name: str,
    choice: ResumeChoice,
    options: RunOptions,
    workspace: Path | None = None,
) -> ResumeOutcome:
    """Recover a session, then run its team until it is done, failed or paused.

    ``workspace`` holds the files of a session that no supervisor ran; a team's own is known.
    Raises ``StillRunning`` while the session is being run, ``RecoveryStopped`` when every rung of
    the ladder failed.
    """
    _check_store(store)
    found = interruption(store.session(name, create=False))
    with requests_ignored(), SupervisorLease(store, name) as lease:
        resumed = _Recovery(store, lease, choice, options, workspace).run(found)
        if resumed.plan.workflow is None:
            return ResumeOutcome(resumed)
        options.reporter.prepared(resumed)
        workflow = from_plain(resumed.plan.workflow)
        return ResumeOutcome(resumed, _run(store, lease, workflow, options, resumed))


def preview_resume(
    store: Store,
    name: str,
    choice: ResumeChoice,
    options: RunOptions,
    workspace: Path | None = None,
) -> ResumePlan:
    """Return what ``resume_session`` would do; nothing is changed, and no lease is taken."""
    session = store.session(name, create=False)
    root, force = _workspace(session, options, workspace)
    if root is not None and session.files.pending is None:
        session = store.session(name, create=False, workspace=root, force=force)
    try:
        return choice.plan(session, interruption(session))
    finally:
        session.close()


class ResumeThread:
    """Resumes a session in a thread of this process, as ``RecoveryWatch`` starts it.

    For long-running programs, such as a server. The team ends with the process; a watcher whose
    teams must survive it starts processes instead.
    """

    def __init__(self, store: Store, name: str, rung: str, options: RunOptions) -> None:
        self._arguments = (store, name, ResumeChoice(rung=rung), options)
        self._report = options.reporter.say
        self._thread = threading.Thread(target=self._run, name=f"mulligan-resume-{name}")
        self.pid = os.getpid()
        self.error: MulliganError | None = None
        self.outcome: ResumeOutcome | None = None
        """None also if the session was resumed elsewhere before this thread ran."""
        self._has_ended = False
        self._thread.start()

    def poll(self) -> int | None:
        """Return None while it runs, then 0, or the exit code of the error that ended it.

        That is 1 for an error that is not Mulligan's; the thread has reported it.
        """
        if self._thread.is_alive():
            return None
        if self.error is not None:
            return self.error.exit_code
        return 0 if self._has_ended else 1

    def join(self) -> None:
        """Wait until the session has ended."""
        self._thread.join()

    def _run(self) -> None:
        store, name, choice, options = self._arguments
        try:
            # Checked again: since the watch looked, another process may have resumed it, and even
            # have ended it. A session that is done must not be run once more.
            if is_due(store.session(name, create=False)):
                self.outcome = resume_session(store, name, choice, options)
            self._has_ended = True
        except MulliganError as error:
            self.error = error
            self._report(f"{name} was not resumed: {error}")


class _Recovery:
    """Everything that is done before the agents are started, under the supervisor's lease."""

    def __init__(
        self,
        store: Store,
        lease: SupervisorLease,
        choice: ResumeChoice,
        options: RunOptions,
        workspace: Path | None,
    ) -> None:
        self._store = store
        self._lease = lease
        self._choice = choice
        self._options = options
        self._workspace = workspace

    def run(self, found: Interruption | None, *, same_team: bool = True) -> Resumed:
        """Recover the session; ``same_team`` means that its own team is started afterwards."""
        root, force = _workspace(self._lease.session, self._options, self._workspace)
        with self._lease.files(root, force=force) as handle:
            # Planned twice: once so that a wrong choice is refused before any process is ended,
            # and again because orphan processes may have written until they were.
            plan = self._choice.plan(handle, found)
            refuse_left_behind(plan)
            if plan.workflow is not None and same_team and plan.rung != STOP:
                check_variables(from_plain(plan.workflow), self._options.variables)
            self._options.reporter.found(plan)
            self._end_orphans(handle)
            plan = self._choice.plan(handle, found)
            self._options.reporter.planned(plan)
            return resume(self._store, handle, plan)

    def _end_orphans(self, session: Session) -> None:
        if team_of(session) is None:
            return  # no supervisor ever started a process for it
        for orphan in end_orphans(self._store, session.name, session.agent.lease):
            self._options.reporter.say(
                f"{orphan.agent}: ended process {orphan.pid} of an earlier supervisor"
            )


def _run(
    store: Store,
    lease: SupervisorLease,
    workflow: Workflow,
    options: RunOptions,
    resumed: Resumed | None,
) -> RunOutcome:
    """Supervise a team under a lease that is already held, and return how that ended."""
    if not options.with_files:
        workflow = msgspec.structs.replace(workflow, workspace=None)
    session, reporter = lease.session, options.reporter

    def run() -> str:
        return supervise(
            store,
            lease,
            workflow,
            variables=options.variables,
            resumed=resumed is not None,
            say=reporter.say,
            show=reporter.output(list(workflow.agents)),
            output=options.output,
            stdin=options.stdin,
            terminal=options.terminal,
            force=options.force,
        )

    # The verdict on a recovery is written before the lease is released: a watcher that finds the
    # lease free can rely on it.
    status = run() if resumed is None else try_out(session, resumed.at, run)
    reason: str | None = session.internal.control("reason")
    left = tuple(quarantined(session.tasks))
    return RunOutcome(session.name, workflow, status, reason, left, resumed)


def _take_to_run(store: Store, name: str) -> SupervisorLease:
    try:
        return SupervisorLease(store, name)
    except StillRunning as error:
        raise LeaseHeld(
            f"Another supervisor runs the session {name!r}.",
            hint="`mulligan status` shows it, `mulligan pause` ends it.",
        ) from error


def _check_store(store: Store) -> None:
    if store.path is None:
        raise NotAStore("Agents cannot share a store in memory.")


def _workspace(
    session: Session, options: RunOptions, workspace: Path | None
) -> tuple[Path | None, bool]:
    """Return the directory of a session's files, and whether it was accepted before.

    That is the workspace of its team, or the given one if there was no team.
    """
    if not options.with_files:
        return None, False
    team = team_of(session)
    if team is None:
        return workspace, options.force
    place = team.get("workspace")
    return (Path(place) if place else None), True
