"""The supervisor's decisions: a stimulus goes in, actions come out; no I/O and no clock.

An agent is waiting for others, up, ending (it was told to), delayed before a restart, or at rest:
done, failed or suspended. What is true of all of them at any time: no agent has two processes, none
is restarted more often than its workflow allows, and once all are at rest there is one ``Finish``.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable
from enum import Enum

from mulligan.session.runtime.loop import RESTART_STATUS
from mulligan.supervisor.stimuli import (
    CHECKPOINT,
    PAUSE,
    Action,
    Answered,
    Beat,
    Begin,
    CannotStart,
    CheckpointAsked,
    Delay,
    EndAsked,
    Ended,
    Escalate,
    Exited,
    Finish,
    Health,
    Kill,
    PauseAsked,
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
"""Seconds without a sign of life after which an agent that gave some before is hung."""

TERMINATE_GRACE_SECONDS = 10.0
"""Seconds between asking a process to end and ending it."""

KILL_AFTER_PAUSE_SECONDS = 2.0
"""Seconds after the time of a pause is up within which every process is ended, come what may."""

MAX_FAILED_HEALTH_CHECKS = 3
"""How many failed health commands in a row make an agent be restarted."""

STABLE_AFTER_SECONDS = 1.0
"""Seconds after which a process counts as having worked; refreshes are not closer together."""

SUPERVISOR_STALL_SECONDS = 5.0
"""Seconds between two ticks above which the supervisor itself was blocked, and no agent is late."""


class Phase(Enum):
    """Where an agent stands."""

    WAITING = "waiting"
    UP = "up"
    ENDING = "ending"
    DELAYED = "delayed"
    DONE = "done"
    FAILED = "failed"
    SUSPENDED = "suspended"


LIVE = (Phase.UP, Phase.ENDING)


class _Agent:
    """What the machine knows of one agent."""

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
        """Forget what was known of the process before."""
        self.started = self.seen = now
        self.has_beaten = False
        self.progress_by = None if self.spec.progress is None else now + self.spec.progress
        self.sick = 0
        self.hang_reason = ""
        """Why it was killed, if that was because it hung."""
        self.was_told = False
        """Whether it was sent a signal to make it end."""

    def silent_by(self) -> float | None:
        """Return when it has to have given another sign of life."""
        limit = self.spec.heartbeat or (HEARTBEAT_TIMEOUT_SECONDS if self.has_beaten else None)
        return None if limit is None else self.seen + limit

    def shift(self, seconds: float) -> None:
        """Move its deadlines by a time in which the supervisor was blocked."""
        self.seen += seconds
        if self.progress_by is not None:
            self.progress_by += seconds


class _Barrier:
    """A request to all agents, and who has answered it."""

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
    """Decides for a team of agents; ``done`` names those that need not be started."""

    def __init__(self, workflow: Workflow, done: Iterable[str] = ()) -> None:
        at_rest = frozenset(done)
        self._agents = {
            name: _Agent(spec, Phase.DONE if name in at_rest else Phase.WAITING)
            for name, spec in workflow.agents.items()
        }
        self._barrier: _Barrier | None = None
        self._has_begun = self._stops = self._has_finished = False
        self._looked: float | None = None
        self._over_by = float("inf")
        """When a pause has to be over."""
        self._actions: list[Action] = []

    @property
    def is_asking(self) -> bool:
        """Whether answers of agents are being waited for."""
        return self._barrier is not None

    @property
    def is_stopping(self) -> bool:
        """Whether the agents were told to end."""
        return self._stops

    def phase(self, agent: str) -> Phase:
        """Return where an agent stands."""
        return self._agents[agent].phase

    def due(self) -> float | None:
        """Return when the next ``Tick`` changes something, if nothing else happens before."""
        found = [a.due for a in self._agents.values() if a.phase in (Phase.DELAYED, Phase.ENDING)]
        for agent in self._agents.values():
            if agent.phase is Phase.UP:
                found += [t for t in (agent.silent_by(), agent.progress_by) if t is not None]
        if self._barrier is not None:
            found.append(self._barrier.deadline)
        return min(found, default=None)

    def handle(self, stimulus: Stimulus, now: float) -> list[Action]:
        """Take note of what happened and return what is to be done about it, in order."""
        if self._has_finished:
            return []
        self._actions = []
        self._note(stimulus, now)
        self._advance(now)
        return self._actions

    def _note(self, stimulus: Stimulus, now: float) -> None:
        match stimulus:
            case Begin():
                self._has_begun = True
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
            case _ if agent.phase is not Phase.UP:
                pass  # it is on its way out, or gone
            case Started():
                agent.begin(now)
            case Beat():
                agent.seen, agent.has_beaten = now, True
            case Progressed():
                limit = stimulus.deadline or agent.spec.progress
                agent.progress_by = None if limit is None else now + limit
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
            if gap > SUPERVISOR_STALL_SECONDS:
                agent.shift(gap)
            if agent.phase is Phase.ENDING and now >= agent.due:
                self._kill(agent, name, signal.SIGKILL, now)
            elif agent.phase is Phase.UP and (why := _hang(agent, now)):
                self._condemn(agent, name, why, now)

    def _condemn(self, agent: _Agent, name: str, why: str, now: float) -> None:
        """End a process that does not get on, after everything was kept as it is."""
        self._do(TakeCheckpoint("recovery", f"{name} is hung: {why}"))
        self._kill(agent, name, signal.SIGKILL, now, why)
        agent.hang_reason = why

    def _kill(self, agent: _Agent, name: str, number: int, now: float, why: str = "") -> None:
        self._expect_end(agent, now)
        if number == signal.SIGKILL:
            agent.due = (
                now + TERMINATE_GRACE_SECONDS
            )  # there is nothing harder to try, whatever a pause has left
        self._do(Kill(name, number, why))

    def _expect_end(self, agent: _Agent, now: float) -> None:
        """Give a process the usual time to end, or what a pause has left."""
        agent.phase, agent.was_told = Phase.ENDING, True
        agent.due = min(now + TERMINATE_GRACE_SECONDS, max(now, self._over_by))

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
                self._kill(agent, name, signal.SIGKILL, now)
            elif agent.phase is Phase.DELAYED:
                self._rest(agent, name, Phase.SUSPENDED)

    def _answered(self, barrier: _Barrier, agent: _Agent, name: str, now: float) -> None:
        if name not in barrier.expected:
            return
        barrier.expected.discard(name)
        barrier.answered.add(name)
        if barrier.kind == PAUSE and agent.phase is Phase.UP:
            # It leaves its loop by itself now; if it does not, it is made to.
            self._expect_end(agent, now)

    # The end of a process

    def _exited(self, agent: _Agent, exited: Exited, now: float) -> None:
        name, status = exited.agent, exited.status
        if self._barrier is not None:
            self._barrier.expected.discard(name)
        if agent.hang_reason:
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

    def _failed(self, agent: _Agent, exited: Exited, reason: str, now: float) -> None:
        name = exited.agent
        has_worked = (
            exited.state not in ("", "starting") or now - agent.started >= STABLE_AFTER_SECONDS
        )
        if has_worked and not agent.hang_reason and exited.status != 0:
            self._do(TakeCheckpoint("recovery", f"{name} {reason}"))
        if exited.task is not None and exited.crashes >= agent.spec.quarantine_after:
            self._do(Quarantine(name, exited.task, exited.crashes))
            # What made it fail is out of the way, so it deserves all its chances again.
            agent.restarts.clear()
            agent.streak = 0
        if self._stops:
            self._rest(agent, name, Phase.SUSPENDED)
        elif agent.spec.restart == NEVER:
            self._give_up(agent, name, reason)
        else:
            self._restart(agent, name, reason, now)

    def _restart(self, agent: _Agent, name: str, reason: str, now: float) -> None:
        spec = agent.spec
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
        """Do whatever has become possible."""
        if not self._has_begun:
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


def _wait(backoff: Backoff, streak: int) -> float:
    """Return how long to wait after ``streak`` restarts in a row; the first one is immediate."""
    if streak == 0:
        return 0.0
    # The exponent is capped so that the power stays a finite number.
    return min(backoff.initial * backoff.factor ** min(streak - 1, 100), backoff.max)


def _hang(agent: _Agent, now: float) -> str | None:
    """Return why an agent that runs is taken for hung, if it is."""
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
