"""The supervisor's decisions: a stimulus goes in, actions come out; no I/O and no clock.

An agent is waiting for others, up, ending (it was told to), delayed before a restart, or at rest:
done, failed or suspended. Invariants: no agent has two processes, none is restarted more often than
its workflow allows, and once all are at rest there is exactly one ``Finish``.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable
from enum import Enum

from mulligan.drift.ladder import CHECKPOINT as CHECKPOINT_RUNG
from mulligan.drift.ladder import ISOLATE, NOTE
from mulligan.session.runtime.loop import RESTART_STATUS
from mulligan.supervisor.stimuli import (
    CHECKPOINT,
    PAUSE,
    Action,
    Answered,
    AskRestart,
    Beat,
    Begin,
    CannotStart,
    CheckpointAsked,
    Delay,
    Drifted,
    EndAsked,
    Ended,
    Escalate,
    Exited,
    Finish,
    Health,
    Isolate,
    Kill,
    PauseAsked,
    Prepare,
    Progressed,
    Quarantine,
    RequestSafePoint,
    Start,
    Started,
    Stimulus,
    TakeCheckpoint,
    Tick,
    Wanted,
)
from mulligan.supervisor.workflow import ALWAYS, NEVER, AgentSpec, Backoff, Workflow

HEARTBEAT_TIMEOUT_SECONDS = 30.0
"""Seconds without a heartbeat after which an agent that sent some before is hung."""

TERMINATE_GRACE_SECONDS = 10.0
"""Seconds between asking a process to end and ending it."""

KILL_AFTER_PAUSE_SECONDS = 2.0
"""Seconds after the end of a pause's time limit within which every process is killed."""

SAFE_POINT_SECONDS = 30.0
"""Seconds that an agent that drifts has to reach a safe point, before it is ended."""

MAX_FAILED_HEALTH_CHECKS = 3
"""After this many failed health commands in a row, an agent is restarted."""

STABLE_AFTER_SECONDS = 1.0
"""Seconds after which a process counts as having worked; refreshes are not closer together."""

SUPERVISOR_STALL_SECONDS = 5.0
"""Seconds between two ticks above which the supervisor itself was blocked, and no agent is late."""


class Phase(Enum):
    """The phase of an agent."""

    WAITING = "waiting"
    UP = "up"
    ENDING = "ending"
    DELAYED = "delayed"
    DONE = "done"
    FAILED = "failed"
    SUSPENDED = "suspended"


LIVE = (Phase.UP, Phase.ENDING)


class _Agent:
    """What the machine knows about one agent."""

    def __init__(self, spec: AgentSpec, phase: Phase) -> None:
        self.spec = spec
        self.phase = phase
        self.starts = 0
        self.restarts: deque[float] = deque()
        self.streak = 0
        self.due = 0.0
        """When a delayed agent is started, or an ending one is killed."""
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """Forget what was known about the previous process."""
        self.started = self.seen = now
        self.has_beaten = False
        self.progress_by = None if self.spec.progress is None else now + self.spec.progress
        self.sick = 0
        self.hang_reason = ""
        """Why it was killed, if that was because it hung."""
        self.was_told = False
        """Whether it was sent a signal to end it."""
        self.drifted: Drifted | None = None
        """Why it was asked to end by itself, if it was."""
        self.leaves_by: float | None = None

    def silent_by(self) -> float | None:
        """Return the deadline for its next sign of life."""
        limit = self.spec.heartbeat or (HEARTBEAT_TIMEOUT_SECONDS if self.has_beaten else None)
        return None if limit is None else self.seen + limit

    def shift(self, seconds: float) -> None:
        """Move its deadlines by a time in which the supervisor was blocked."""
        self.seen += seconds
        if self.progress_by is not None:
            self.progress_by += seconds


class _Barrier:
    """A request to all agents, and which of them have answered."""

    def __init__(
        self,
        kind: str,
        id: str,
        deadline: float,
        expected: Iterable[str],
        wanted: Wanted | None,
    ) -> None:
        self.kind = kind
        self.wanted = wanted or Wanted()
        self.id = id
        self.deadline = deadline
        self.expected = set(expected)
        self.answered: set[str] = set()
        self.late: set[str] = set()


class Machine:
    """Decides for a team of agents; ``done`` and ``isolated`` name those that are not started."""

    def __init__(
        self, workflow: Workflow, done: Iterable[str] = (), isolated: Iterable[str] = ()
    ) -> None:
        at_rest = dict.fromkeys(done, Phase.DONE) | dict.fromkeys(isolated, Phase.SUSPENDED)
        self._agents = {
            name: _Agent(spec, at_rest.get(name, Phase.WAITING))
            for name, spec in workflow.agents.items()
        }
        self._barrier: _Barrier | None = None
        self._has_started = self._stops = self._has_finished = False
        self._looked: float | None = None
        self._over_by = float("inf")
        """The deadline of a pause."""
        self._actions: list[Action] = []

    @property
    def is_asking(self) -> bool:
        """Whether a request waits for answers of agents."""
        return self._barrier is not None

    @property
    def is_stopping(self) -> bool:
        """Whether the agents were told to end."""
        return self._stops

    def phase(self, agent: str) -> Phase:
        """Return the phase of an agent."""
        return self._agents[agent].phase

    def due(self) -> float | None:
        """Return when the next ``Tick`` changes something, if nothing else happens before."""
        found = [a.due for a in self._agents.values() if a.phase in (Phase.DELAYED, Phase.ENDING)]
        for agent in self._agents.values():
            if agent.phase is Phase.UP:
                times = (agent.silent_by(), agent.progress_by, agent.leaves_by)
                found += [t for t in times if t is not None]
        if self._barrier is not None:
            found.append(self._barrier.deadline)
        return min(found, default=None)

    def handle(self, stimulus: Stimulus, now: float) -> list[Action]:
        """Process a stimulus and return the actions to take, in order."""
        if self._has_finished:
            return []
        self._actions = []
        self._note(stimulus, now)
        self._advance(now)
        return self._actions

    def _note(self, stimulus: Stimulus, now: float) -> None:
        match stimulus:
            case Begin():
                self._has_started = True
            case Tick():
                self._tick(now)
            case PauseAsked():
                self._pause(stimulus, now)
            case CheckpointAsked():
                self._ask_checkpoint(stimulus, now)
            case EndAsked():
                self._end(now)
            case _ if stimulus.agent in self._agents:
                self._note_agent(self._agents[stimulus.agent], stimulus, now)
            case _:
                pass

    def _note_agent(self, agent: _Agent, stimulus: Stimulus, now: float) -> None:
        match stimulus:
            case Exited() if agent.phase in LIVE:
                self._exited(agent, stimulus, now)
            case CannotStart() if agent.phase in LIVE:
                self._give_up(agent, stimulus.agent, stimulus.reason)
            case Answered() if self._barrier is not None:
                self._answered(self._barrier, agent, stimulus.agent, now)
            case Drifted(rung=rung) if agent.phase is Phase.DELAYED and rung == ISOLATE:
                self._isolate(agent, stimulus)
            case _ if agent.phase is not Phase.UP:
                pass  # it is on its way out, or gone
            case Started():
                agent.begin(now)
            case Beat():
                agent.seen, agent.has_beaten = now, True
            case Progressed():
                limit = stimulus.deadline or agent.spec.progress
                agent.progress_by = None if limit is None else now + limit
            case Drifted():
                self._drifted(agent, stimulus, now)
            case Health():
                agent.sick = 0 if stimulus.ok else agent.sick + 1
                if agent.sick >= MAX_FAILED_HEALTH_CHECKS:
                    self._condemn(
                        agent,
                        stimulus.agent,
                        f"unhealthy {MAX_FAILED_HEALTH_CHECKS} times in a row",
                        now,
                    )
            case _:
                pass

    # Time

    def _tick(self, now: float) -> None:
        gap = now - (self._looked if self._looked is not None else now)
        self._looked = now
        for name, agent in self._agents.items():
            # The supervisor itself was blocked and saw no heartbeats, so deadlines move by that
            # time.
            if gap > SUPERVISOR_STALL_SECONDS:
                agent.shift(gap)
            if agent.phase is Phase.ENDING and now >= agent.due:
                self._kill(agent, name, signal.SIGKILL, now)
            elif agent.phase is Phase.UP and (why := _hang(agent, now)):
                self._condemn(agent, name, why, now)
            elif agent.phase is Phase.UP and agent.leaves_by is not None and now >= agent.leaves_by:
                self._kill(agent, name, signal.SIGTERM, now, "it reached no safe point")

    def _condemn(self, agent: _Agent, name: str, why: str, now: float) -> None:
        """End a process that makes no progress, after a checkpoint of everything as it is."""
        # Before the kill: the checkpoint shows the files as the hung process left them.
        self._do(TakeCheckpoint("recovery", f"{name} is hung: {why}"))
        self._kill(agent, name, signal.SIGKILL, now, why)
        agent.hang_reason = why

    def _kill(self, agent: _Agent, name: str, number: int, now: float, why: str = "") -> None:
        self._expect_end(agent, now)
        if number == signal.SIGKILL:
            # There is no stronger signal, whatever time a pause has left.
            agent.due = now + TERMINATE_GRACE_SECONDS
        self._do(Kill(name, number, why))

    def _expect_end(self, agent: _Agent, now: float) -> None:
        """Give a process the usual time to end, or the rest of a pause."""
        agent.phase, agent.was_told = Phase.ENDING, True
        agent.due = min(now + TERMINATE_GRACE_SECONDS, max(now, self._over_by))

    def _drifted(self, agent: _Agent, found: Drifted, now: float) -> None:
        """Keep everything as it is; then let the agent end, if that is the response."""
        if found.rung == NOTE or agent.drifted is not None or self._stops:
            return
        self._do(TakeCheckpoint("recovery", f"{found.agent} drifts, {found.rung}: {found.why}"))
        if found.rung == CHECKPOINT_RUNG:
            return
        agent.drifted, agent.leaves_by = found, now + SAFE_POINT_SECONDS
        self._do(AskRestart(found.agent, found.rung))
        if not agent.has_beaten:
            # It never attached, so it has no safe point: there is nothing to wait for.
            self._kill(agent, found.agent, signal.SIGTERM, now, found.why)

    # Requests

    def _pause(self, asked: PauseAsked, now: float) -> None:
        if self._stops:
            return
        self._stops = True
        self._over_by = now + asked.timeout + KILL_AFTER_PAUSE_SECONDS
        self._open(PAUSE, asked.id, now + asked.timeout)
        for name, agent in self._agents.items():
            if agent.phase is Phase.UP and not agent.has_beaten:
                # It never attached, so it cannot answer: there is nothing to wait for.
                self._kill(agent, name, signal.SIGTERM, now)
            elif agent.phase is Phase.DELAYED:
                self._rest(agent, name, Phase.SUSPENDED)

    def _ask_checkpoint(self, asked: CheckpointAsked, now: float) -> None:
        if not self._stops:
            self._open(CHECKPOINT, asked.id, now + asked.limit, asked.wanted)

    def _open(self, kind: str, id: str, deadline: float, wanted: Wanted | None = None) -> None:
        up = {name: agent for name, agent in self._agents.items() if agent.phase is Phase.UP}
        can_answer = [name for name, agent in up.items() if agent.has_beaten]
        self._barrier = _Barrier(kind, id, deadline, can_answer, wanted)
        self._barrier.late = up.keys() - can_answer
        self._do(RequestSafePoint(kind, id, deadline))

    def _end(self, now: float) -> None:
        self._stops = True
        for name, agent in self._agents.items():
            if agent.phase in LIVE:
                # Without a grace period: the user asked twice.
                self._kill(agent, name, signal.SIGKILL, now)
            elif agent.phase is Phase.DELAYED:
                self._rest(agent, name, Phase.SUSPENDED)

    def _answered(self, barrier: _Barrier, agent: _Agent, name: str, now: float) -> None:
        if name not in barrier.expected:
            return
        barrier.expected.discard(name)
        barrier.answered.add(name)
        if barrier.kind == PAUSE and agent.phase is Phase.UP:
            # It leaves its loop by itself now; if it does not, it is killed later.
            self._expect_end(agent, now)

    # The end of a process

    def _exited(self, agent: _Agent, exited: Exited, now: float) -> None:
        name, status = exited.agent, exited.status
        if self._barrier is not None:
            self._barrier.expected.discard(name)
        if self._leaves_for_drift(agent, exited):
            self._leave_for_drift(agent, exited, now)
        elif agent.hang_reason:
            self._failed(agent, exited, f"was hung: {agent.hang_reason}", now)
        elif self._stops and (agent.was_told or status != 0):
            self._rest(agent, name, Phase.DONE if exited.state == "done" else Phase.SUSPENDED)
        elif status == RESTART_STATUS:
            self._delay(
                agent, name, max(0.0, agent.started + STABLE_AFTER_SECONDS - now), now, "refresh"
            )
        elif status == 0 and exited.state == "suspended":
            self._rest(agent, name, Phase.SUSPENDED)
        elif status == 0 and agent.spec.restart != ALWAYS:
            self._rest(agent, name, Phase.DONE)
        else:
            self._failed(agent, exited, how_ended(status), now)

    def _leaves_for_drift(self, agent: _Agent, exited: Exited) -> bool:
        """Whether a process ended because of its drift, and not for another reason meanwhile."""
        if agent.drifted is None or agent.hang_reason or self._stops:
            return False
        return agent.was_told or exited.status != 0

    def _leave_for_drift(self, agent: _Agent, exited: Exited, now: float) -> None:
        name, found = exited.agent, agent.drifted
        if found is None:
            return
        if found.rung == ISOLATE:
            self._isolate(agent, found)
            return
        # Not counted as a restart: the process did nothing wrong but what it is told now.
        self._do(Prepare(name, found.rung))
        wait = max(0.0, agent.started + STABLE_AFTER_SECONDS - now)
        self._delay(agent, name, wait, now, found.rung)

    def _isolate(self, agent: _Agent, found: Drifted) -> None:
        self._rest(agent, found.agent, Phase.SUSPENDED)
        self._do(Isolate(found.agent, found.why))

    def _failed(self, agent: _Agent, exited: Exited, reason: str, now: float) -> None:
        name = exited.agent
        has_worked = (
            exited.state not in ("", "starting") or now - agent.started >= STABLE_AFTER_SECONDS
        )
        if has_worked and not agent.hang_reason and exited.status != 0:
            self._do(TakeCheckpoint("recovery", f"{name} {reason}"))
        if exited.task is not None and exited.crashes >= agent.spec.quarantine_after:
            self._do(Quarantine(name, exited.task, exited.crashes))
            # The cause of its failures is removed, so its restarts are counted from zero again.
            agent.restarts.clear()
            agent.streak = 0
        if self._stops:
            self._rest(agent, name, Phase.SUSPENDED)
        elif agent.spec.restart == NEVER:
            self._give_up(agent, name, reason)
        elif _lost_its_reader(exited):
            # As `CMD | head` in a shell: it did not crash, and would end the same way again.
            self._give_up(agent, name, f"{reason}, and nothing reads its output any more")
        else:
            self._restart(agent, name, reason, now)

    def _restart(self, agent: _Agent, name: str, reason: str, now: float) -> None:
        spec = agent.spec
        # A sliding window: restarts long ago do not count against an agent that has worked since.
        while agent.restarts and now - agent.restarts[0] >= spec.within:
            agent.restarts.popleft()
        if len(agent.restarts) >= spec.max_restarts:
            limit = f"{spec.max_restarts} restarts in {spec.within:g} s are allowed"
            self._give_up(agent, name, f"{reason}; {limit}")
            return
        if now - agent.started >= spec.within:
            agent.streak = 0
        wait = _wait(spec.backoff, agent.streak)
        agent.streak += 1
        agent.restarts.append(now)
        self._delay(agent, name, wait, now, reason)

    def _delay(self, agent: _Agent, name: str, seconds: float, now: float, reason: str) -> None:
        agent.phase, agent.due = Phase.DELAYED, now + seconds
        self._do(Delay(name, seconds, reason))

    def _give_up(self, agent: _Agent, name: str, reason: str) -> None:
        if self._barrier is not None:
            self._barrier.expected.discard(name)
        agent.phase = Phase.FAILED
        self._do(Escalate(name, reason))

    def _rest(self, agent: _Agent, name: str, phase: Phase) -> None:
        agent.phase = phase
        self._do(Ended(name, phase.value))

    # What follows

    def _advance(self, now: float) -> None:
        """Do what has become possible."""
        if not self._has_started:
            return
        if not self._stops:
            for name, agent in self._agents.items():
                if self._may_start(agent, now):
                    self._start(agent, name, now)
        if self._barrier is not None:
            self._settle_barrier(self._barrier, now)
        self._finish_if_over()

    def _may_start(self, agent: _Agent, now: float) -> bool:
        if agent.phase is Phase.DELAYED:
            return now >= agent.due
        return agent.phase is Phase.WAITING and self._is_ready(agent)

    def _is_ready(self, agent: _Agent) -> bool:
        return all(self._agents[other].phase is Phase.DONE for other in agent.spec.after)

    def _start(self, agent: _Agent, name: str, now: float) -> None:
        agent.begin(now)
        agent.phase = Phase.UP
        self._do(Start(name, agent.starts))
        agent.starts += 1

    def _settle_barrier(self, barrier: _Barrier, now: float) -> None:
        """Close a request that all agents have answered, or whose time is up."""
        if barrier.expected and now < barrier.deadline:
            return
        barrier.late |= barrier.expected
        if barrier.kind == CHECKPOINT:
            self._barrier = None
            wanted = barrier.wanted
            self._do(_team_checkpoint(barrier, wanted.kind, wanted.note or "team checkpoint"))
            return
        # SIGTERM first: an agent without safe points can still clean up before the SIGKILL.
        for name in sorted(barrier.expected):
            self._kill(self._agents[name], name, signal.SIGTERM, now)
        barrier.expected = set()
        barrier.deadline = float("inf")

    def _finish_if_over(self) -> None:
        agents = self._agents.values()
        if any(agent.phase in (*LIVE, Phase.DELAYED) for agent in agents):
            return
        phases = {agent.phase for agent in agents}
        if phases == {Phase.DONE}:
            status = "done"
        elif self._stops or Phase.FAILED not in phases:
            status = "paused"
        else:
            status = "failed"
        self._has_finished = True
        # Before the status: a session with the status done has a checkpoint of its end.
        self._do(self._last_checkpoint(status))
        self._do(Finish(status))

    def _last_checkpoint(self, status: str) -> TakeCheckpoint:
        kind = "recovery" if status == "failed" else "routine"
        if self._barrier is not None:
            return _team_checkpoint(self._barrier, kind, status)
        return TakeCheckpoint(kind, status)

    def _do(self, action: Action) -> None:
        self._actions.append(action)


def how_ended(status: int) -> str:
    """Return how a process ended, in words."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def _lost_its_reader(exited: Exited) -> bool:
    """Whether a process ended because it could not print: by SIGPIPE, or with an error for it."""
    return exited.output_closed and (exited.status > 0 or exited.status == -signal.SIGPIPE)


def _wait(backoff: Backoff, streak: int) -> float:
    """Return how long to wait after ``streak`` restarts in a row; the first one is immediate."""
    if streak == 0:
        return 0.0
    # The exponent is capped so that the power stays a finite number.
    return min(backoff.initial * backoff.factor ** min(streak - 1, 100), backoff.max)


def _hang(agent: _Agent, now: float) -> str | None:
    """Return why a running agent counts as hung, if it does."""
    silent_by = agent.silent_by()
    if silent_by is not None and now >= silent_by:
        return f"no sign of life for {now - agent.seen:.1f} s"
    if agent.progress_by is not None and now >= agent.progress_by:
        return "its step took longer than it may"
    return None


def _team_checkpoint(barrier: _Barrier, kind: str, what: str) -> TakeCheckpoint:
    answered, late = tuple(sorted(barrier.answered)), tuple(sorted(barrier.late))
    said = [f"answered: {', '.join(answered)}"] if answered else []
    said += [f"late: {', '.join(late)}"] if late else []
    note, label = "; ".join([what, *said]), barrier.wanted.label
    return TakeCheckpoint(kind, note, barrier.id, answered, late, label)
