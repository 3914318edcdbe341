"""The supervisor's event loop: asyncio around the machine.

Exits, signals and time become stimuli; the machine answers with actions; the runner carries them
out. Checkpoints run in a thread with a handle of their own, so an exit is noticed within
milliseconds even during a long capture. The runner does not follow the journal: it reads state when
an agent exits, when a request arrives, and while it waits for answers.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from mulligan.errors import MulliganError, StaleLease, StoreGone
from mulligan.model import Checkpoint
from mulligan.opener import limit_by_workflow
from mulligan.session import Session
from mulligan.session.runtime.quiet import LOOK_SECONDS
from mulligan.store import LEASE_TTL, Store
from mulligan.supervisor.checkpoint_thread import CheckpointThread
from mulligan.supervisor.drift import TeamDrift
from mulligan.supervisor.health import HealthChecker
from mulligan.supervisor.lease import SupervisorLease
from mulligan.supervisor.machine import Machine, how_ended
from mulligan.supervisor.orphans import end_orphans
from mulligan.supervisor.process import Ending
from mulligan.supervisor.records import PAUSED, Records
from mulligan.supervisor.schedule import DrillSchedule, VerifySchedule
from mulligan.supervisor.signals import SignalHandlers
from mulligan.supervisor.stimuli import (
    PAUSE,
    Action,
    Answered,
    AskRestart,
    Begin,
    CannotStart,
    CheckpointAsked,
    Delay,
    EndAsked,
    Ended,
    Escalate,
    Finish,
    Isolate,
    Kill,
    PauseAsked,
    Prepare,
    Quarantine,
    RequestSafePoint,
    Start,
    Started,
    Stimulus,
    TakeCheckpoint,
    Tick,
)
from mulligan.supervisor.team import Show, Team
from mulligan.supervisor.team_events import TeamEvents
from mulligan.supervisor.terminal import HeldReports, Terminal
from mulligan.supervisor.watchdog import STALL_SECONDS, Watchdog
from mulligan.supervisor.workflow import Workflow
from mulligan.upkeep.verify.settings import VerifySettings, read_verify

HEARTBEAT_POLL_SECONDS = 1.0
"""Seconds between two reads of the heartbeats."""

ANSWER_POLL_SECONDS = 0.05
"""Seconds between two reads of the answers to a request."""

CHECKPOINT_WAIT_SECONDS = 0.1
"""Seconds that a restart waits for the checkpoint before it; a slower one continues meanwhile."""

PAUSE_SECONDS = 30.0
"""Seconds that agents have to reach a safe point after a signal to the supervisor."""

TERMINATE_SECONDS = 2.0
"""Seconds between SIGTERM and SIGKILL for agents whose store is gone."""

ENDED_BY_USER = (-signal.SIGINT, 128 + signal.SIGINT, -signal.SIGHUP, 128 + signal.SIGHUP)
"""How a program ends whose user typed Ctrl-C, or closed its terminal."""

Say = Callable[[str], None]
"""Receives one sentence for people about each thing that happens."""


def supervise(
    store: Store,
    lease: SupervisorLease,
    workflow: Workflow,
    *,
    variables: Mapping[str, str],
    resumed: bool = False,
    say: Say = lambda _: None,
    show: Show | None = None,
    output: int | None = None,
    stdin: int | None = None,
    terminal: Terminal | None = None,
    force: bool = False,
) -> str:
    """Run the agents of a workflow until they end, and return the status of the session.

    That is ``done``, ``failed`` or ``paused``. ``resumed`` continues the previous run: agents that
    were done are not started. The agents get ``variables`` and what the workflow adds. What they
    print goes where this process prints (standard output to the descriptor ``output``, if given),
    or all of it to ``show``. SIGTERM, SIGHUP and Ctrl-C pause the team, SIGQUIT and a second Ctrl-C
    end it at once, SIGUSR1 makes the supervisor look for a request. The lease stays held on return.

    An agent that is alone reads from ``stdin``, or borrows the ``terminal`` when it uses it.
    """
    runner = Runner(store, lease, workflow, variables, say, stdin, terminal)
    return asyncio.run(runner.run(resumed=resumed, show=show, output=output, force=force))


class Runner:
    """One supervisor, from its first checkpoint to its last."""

    def __init__(
        self,
        store: Store,
        lease: SupervisorLease,
        workflow: Workflow,
        variables: Mapping[str, str],
        say: Say,
        stdin: int | None = None,
        terminal: Terminal | None = None,
    ) -> None:
        self._stdin = stdin
        self._terminal = terminal
        self._store = store
        self._lease = lease
        self._session = lease.session
        self._name = self._session.name
        self._records = Records(self._session)
        self._heard = lease.stale_request
        self._workflow = msgspec.structs.replace(workflow, session=self._name)
        self._variables = variables
        self._say = HeldReports(say, terminal)
        self._status: str | None = None
        self._reason = ""
        self._pending: deque[Callable[[], Stimulus | None]] = deque()
        self._woken = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._looked = self._renewed = self._routine = self._look_due = 0.0
        self._file_look: asyncio.Task[None] | None = None
        self._events = TeamEvents(self._session)
        self._head = 0
        self._is_ending = False

    async def run(
        self, *, resumed: bool, show: Show | None, output: int | None, force: bool
    ) -> str:
        """Supervise until nothing is left to do; see ``supervise``."""
        handlers = self._listen()
        try:
            with self._lease.files(self._workflow.workspace, force=force) as files:
                await self._run(files, resumed, self._assemble(show, output))
        finally:
            handlers.give_back()
        return self._status or PAUSED

    async def _run(self, files: Session, resumed: bool, team: Team) -> None:
        self._open(files)
        self._team = team
        self._guard = Watchdog(team.groups, STALL_SECONDS)
        # Before the first agent: from then on, a write of this loop may wait for one that is
        # stopped.
        self._guard.start()
        try:
            await self._begin(resumed)
            await self._go_on()
        except StoreGone as gone:
            await self._leave(gone)
            raise
        finally:
            await self._close()

    # Opening and closing

    def _open(self, handle: Session) -> None:
        if handle.files.recovery_error is not None:
            self._say(f"a restore of the files is not finished: {handle.files.recovery_error}")
        self._checkpoint_thread = CheckpointThread(handle)
        self._health_checker = HealthChecker(
            self._workflow, self._checkpoint_thread, self._records, self._woken.set, self._say
        )
        self._drift = TeamDrift(self._session, self._records, self._checkpoint_thread, self._say)
        store = str(self._store.path)
        beside = (
            self._workflow,
            self._session,
            store,
            self._variables,
            self._woken.set,
            self._say,
        )
        settings = read_verify(Path(store)) if self._store.path else VerifySettings(every=None)
        self._schedules = (DrillSchedule(*beside), VerifySchedule(*beside, settings))

    def _assemble(self, show: Show | None, output: int | None) -> Team:
        return Team(
            self._store,
            self._workflow,
            self._records,
            self._variables,
            self._gone,
            show=show,
            output=output,
            stdin=self._stdin,
            terminal=self._terminal,
        )

    async def _begin(self, resumed: bool) -> None:
        """End orphan processes, record the team, then start the agents."""
        for orphan in end_orphans(self._store, self._name, self._records.lease):
            self._say(f"{orphan.agent}: ended process {orphan.pid} of an earlier supervisor")
        self._goes_on = resumed or self._records.status == PAUSED
        names = self._workflow.agents if self._goes_on else ()
        done = [name for name in names if self._records.agent(name).get("state") == "done"]
        fresh = not self._goes_on
        isolated = self._drift.begin(self._workflow.agents, afresh=fresh)
        self._machine = Machine(self._workflow, done, isolated)
        self._team.remember_prompts()
        self._records.begin(self._workflow, resumed, self._heard, afresh=fresh)
        limit_by_workflow(self._store, self._session)
        self._drift.watch()
        if fresh:
            await self._take(TakeCheckpoint("routine", "before the agents start"))
        # Not earlier: nothing renews the lease while the first checkpoint reads the files.
        self._lease.shorten()
        self._renewed = self._now()
        self._routine = self._next_routine()
        await self._handle(Begin())

    async def _close(self) -> None:
        """Leave no process behind, whatever happened."""
        self._health_checker.stop()
        # Processes first, then the thread that watches for stopped ones, then checkpoints: until
        # all processes have ended, one of them may hold a lock that the others need.
        await self._team.end()
        for schedule in self._schedules:
            await schedule.stop()
        self._guard.stop()
        for task in self._tasks:
            task.cancel()
        self._checkpoint_thread.close()

    async def _leave(self, gone: StoreGone) -> None:
        """Let agents that attached reach a safe point, where they see that the store is gone.

        The journal cannot be written, so no pause can be requested. Agents that never attached
        have no safe points: they get SIGTERM at once.
        """
        self._say(f"{gone} Stopping the agents at their next safe point")
        self._team.terminate(attached=False)
        until = self._now() + PAUSE_SECONDS
        while self._team.groups() and self._now() < until and not self._is_ending:
            await asyncio.sleep(ANSWER_POLL_SECONDS)
            # The loop is not blocked, only waiting: the watchdog must not end anything.
            self._guard.turn()
        # SIGTERM before the SIGKILL that follows in `_close`: agents may save what they have.
        self._team.terminate(attached=True)
        until = self._now() + TERMINATE_SECONDS
        while self._team.groups() and self._now() < until:
            await asyncio.sleep(ANSWER_POLL_SECONDS)

    def _listen(self) -> SignalHandlers:
        """Turn signals into stimuli."""
        handlers = SignalHandlers(asyncio.get_running_loop())
        handlers.add(signal.SIGUSR1, partial(self._later, self._asked))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves it
                handlers.add(number, partial(self._told, number))
        if self._terminal is not None:
            handlers.add(signal.SIGCHLD, lambda: self._team.look_for_stops())
        return handlers

    # Stimuli

    def _told(self, number: int) -> None:
        name = signal.Signals(number).name
        if number == signal.SIGQUIT or (number == signal.SIGINT and self._reason):
            self._reason = self._reason or name
            self._say("ending all agents at once")
            self._is_ending = True
            self._later(EndAsked)
        elif not self._reason:
            self._reason = name
            again = "; Ctrl-C again ends the agents at once" if number == signal.SIGINT else ""
            self._say(f"pausing{again}")
            self._later(lambda: PauseAsked(self._new_id(), PAUSE_SECONDS))

    def _gone(self, name: str, ending: Ending) -> None:
        if ending.had_terminal and ending.status in ENDED_BY_USER:
            # Before its exit: a program that a person ended is not restarted.
            self._told(signal.SIGINT)
        elif ending.output_closed and self._terminal is not None and not self._terminal.is_there:
            # Its window was closed. The signal that says so to this process may come later.
            self._told(signal.SIGHUP)
        self._later(lambda: self._exited(name, ending))

    def _later(self, make: Callable[[], Stimulus | None]) -> None:
        """Queue a stimulus for the loop: signal and process callbacks must not write."""
        self._pending.append(make)
        self._woken.set()

    def _exited(self, name: str, ending: Ending) -> Stimulus:
        member = self._team.ended(name)
        self._health_checker.forget(name)
        lived = self._now() - member.started
        self._say(f"{name} {how_ended(ending.status)} after {lived:.1f} s")
        return self._records.exited(name, ending, counts=not self._machine.is_stopping)

    def _asked(self) -> Stimulus | None:
        """Read the request to the agents, unless it was read before."""
        request = self._records.request()
        if request is None or request.id == self._heard:
            return None
        self._heard = request.id
        seconds = max(0.0, (request.deadline - self._session.internal.clock.now()).total_seconds())
        if request.kind == PAUSE:
            self._reason = self._reason or PAUSE
            self._say("pausing")
            return PauseAsked(request.id, seconds)
        return CheckpointAsked(request.id, seconds, request.wanted)

    # The loop

    async def _go_on(self) -> None:
        while self._status is None:
            await self._wait()
            self._guard.turn()
            self._store.check_present()
            while self._pending:
                # Before the stimulus: an agent answers and then exits, and its exit must not
                # overtake the answer.
                await self._look_for_answers()
                if (stimulus := self._pending.popleft()()) is not None:
                    await self._take_up(stimulus)
            await self._look_for_answers()
            await self._look()
            for verdict in self._health_checker.look(self._now(), self._team):
                await self._handle(verdict)
            for schedule in self._schedules:
                schedule.look(self._now())
            await self._keep_up()

    async def _wait(self) -> None:
        """Sleep until a stimulus arrives or a deadline passes."""
        now, due = self._now(), self._machine.due()
        until = min(
            self._looked + HEARTBEAT_POLL_SECONDS,
            now + HEARTBEAT_POLL_SECONDS if due is None else due,
        )
        seconds = ANSWER_POLL_SECONDS if self._machine.is_asking else max(0.0, until - now)
        if self._pending:
            return
        # Cleared after the check, in the same turn of the loop: no callback runs in between, so no
        # stimulus is missed.
        self._woken.clear()
        try:
            await asyncio.wait_for(self._woken.wait(), seconds)
        except TimeoutError:
            return

    async def _look(self) -> None:
        """Read heartbeats and requests when due, and let the machine check its deadlines."""
        now, due = self._now(), self._machine.due()
        if now - self._looked >= HEARTBEAT_POLL_SECONDS or (due is not None and now >= due):
            self._looked = now
            await self._look_for_signs()
            await self._look_for_requests()
            await self._handle(Tick())

    async def _look_for_signs(self) -> None:
        for sign in self._team.look(self._now()):
            await self._handle(sign)

    async def _look_for_requests(self) -> None:
        """Look for a request without its signal, or a restore, if anything was written."""
        # Reading the head is cheap; events are only read when something was written, and the state
        # only when they may have changed what it says of requests and agents.
        if (head := self._session.head.seq) == self._head:
            return
        self._head = head
        drifted = self._drift.look(self._events)
        if self._events.may_revert:
            self._team.remind()
        if self._events.may_ask and (stimulus := self._asked()) is not None:
            await self._take_up(stimulus)
        for found in drifted:
            await self._handle(found)

    async def _take_up(self, stimulus: Stimulus) -> None:
        """Handle a stimulus; if it is a request, with the agents known that can answer it."""
        if isinstance(stimulus, PauseAsked | CheckpointAsked):
            # After the request was read: an agent that attached before it was made can answer, and
            # one without a heartbeat would be ended instead.
            await self._look_for_signs()
        await self._handle(stimulus)

    async def _look_for_answers(self) -> None:
        if not self._machine.is_asking or (id := self._records.request_id()) is None:
            return
        for name in self._records.answered(id):
            await self._handle(Answered(name))

    async def _keep_up(self) -> None:
        """Renew the lease, and take the routine checkpoint, when they are due."""
        now = self._now()
        if now - self._renewed >= LEASE_TTL / 3:
            self._renewed = now
            self._session.internal.renew()
        if now >= self._routine and self._status is None:
            self._routine = self._next_routine()
            if now >= self._routine:
                self._routine = now + self._workflow.shortest
                self._beside(self._take(TakeCheckpoint("routine", "")))
        if self._workflow.watch and self._status is None and now >= self._look_due:
            self._look_due = now + LOOK_SECONDS
            # One at a time: during a long capture, further looks would only queue up.
            if self._file_look is None or self._file_look.done():
                self._file_look = self._beside(self._look_at_files())
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.discard(task)
            task.result()  # raises StaleLease, which ends this supervisor

    async def _look_at_files(self) -> None:
        await self._attempt(self._checkpoint_thread.look_for_changes())

    def _next_routine(self) -> float:
        newest = self._checkpoint_thread.newest()
        if newest is None:
            return self._now()
        age = (self._session.internal.clock.now() - newest).total_seconds()
        # A time in the future comes from a clock that ran ahead: the age of the checkpoint is
        # unknown.
        return self._now() if age < 0 else self._now() + self._workflow.shortest - age

    # Actions

    async def _handle(self, stimulus: Stimulus) -> None:
        pending: deque[Stimulus] = deque([stimulus])
        while pending:
            for action in self._machine.handle(pending.popleft(), self._now()):
                if (next_one := await self._do(action)) is not None:
                    pending.append(next_one)

    async def _do(self, action: Action) -> Stimulus | None:
        match action:
            case Start():
                return self._start(action)
            case Kill():
                self._say(f"{action.agent} is being ended" + (action.why and f": {action.why}"))
                self._team.kill(action.agent, action.signal)
            case RequestSafePoint():
                # Remembered before it is written: its own request must not be mistaken for
                # another's.
                self._heard = action.id
                self._records.request_safe_point(action, max(0.0, action.deadline - self._now()))
            case TakeCheckpoint():
                task = self._beside(self._take(action))
                if action.kind == "recovery":
                    # Before the kill or restart that follows, if it is quick: the checkpoint should
                    # hold what the agent left. A long capture must not delay the restart.
                    await asyncio.wait([task], timeout=CHECKPOINT_WAIT_SECONDS)
            case Ended():
                self._records.state(action.agent, action.state)
                self._team.release(action.agent)
            case Delay():
                self._delay(action)
            case Quarantine():
                self._say(f"{action.agent}: task {action.task!r} is put in quarantine")
                self._records.quarantine(action)
            case Escalate():
                self._say(f"{action.agent} is given up: {action.reason}")
                self._records.gave_up(action.agent, action.reason)
                self._team.release(action.agent)
            case AskRestart():
                self._records.ask_restart(action.agent, action.rung)
            case Prepare():
                if (told := await self._drift.prepare(action)) is not None:
                    self._team.hand_over(action.agent, told)
            case Isolate():
                self._drift.isolate(action)
            case Finish():
                await self._finish(action)
        return None

    def _start(self, action: Start) -> Stimulus:
        name, now = action.agent, self._now()
        try:
            pid = self._team.start(name, now, again=self._goes_on or action.restarts > 0)
        except (OSError, ValueError) as error:  # such as a NUL in an argument
            reason = f"it cannot be started: {_cause(error)}"
            status = 127 if isinstance(error, FileNotFoundError) else 126
            self._records.not_started(name, status, reason)
            return CannotStart(name, reason)
        self._health_checker.expect(name, now)
        self._say(f"{name} started as process {pid}")
        return Started(name, pid)

    def _delay(self, action: Delay) -> None:
        if action.seconds < CHECKPOINT_WAIT_SECONDS:
            self._say(f"{action.agent} starts again")
            return
        self._say(f"{action.agent} starts again in {action.seconds:.1f} s")
        self._records.state(action.agent, "waiting", action.reason)

    async def _take(self, action: TakeCheckpoint) -> None:
        # A note of a request is kept in full.
        note = action.note if action.id is not None else action.note[:500]

        async def take() -> Checkpoint | None:
            self._records.used(self._team.usage())
            return await self._checkpoint_thread.take(action.kind, note or None, action.label)

        taken = await self._attempt(take())
        if action.id is not None:
            self._records.barrier(action, taken)

    async def _attempt(self, work: Awaitable[Checkpoint | None]) -> Checkpoint | None:
        """Take a checkpoint; one that fails is reported, and does not end the team."""
        try:
            return await work
        except (StaleLease, StoreGone):
            raise
        except (MulliganError, OSError) as error:
            self._say(f"no checkpoint was taken: {error}")
            return None

    def _beside(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        return task

    async def _finish(self, action: Finish) -> None:
        # Checkpoints that are under way belong to this run: their events come before its last one.
        await asyncio.gather(*self._tasks)
        self._records.finish(action.status, self._reason or action.status)
        self._status = action.status
        verb = "has" if action.status == "failed" else "is"
        self._say(f"{self._name} {verb} {action.status}")

    def _now(self) -> float:
        return self._session.internal.clock.monotonic()

    def _new_id(self) -> str:
        return f"{PAUSE}-{self._session.internal.clock.wall_ns():x}"


def _cause(error: OSError | ValueError) -> str:
    """Return why a process could not be started, without the number of the system's error."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error)
