"""What happens to a supervisor, and what it decides to do: the two vocabularies of its machine."""

from __future__ import annotations

import msgspec

PAUSE = "pause"
CHECKPOINT = "checkpoint"


class Begin(msgspec.Struct, frozen=True):
    """The supervisor is ready."""


class Started(msgspec.Struct, frozen=True):
    """A process runs for an agent."""

    agent: str
    pid: int


class CannotStart(msgspec.Struct, frozen=True):
    """The system refuses to run the command of an agent."""

    agent: str
    reason: str


class Exited(msgspec.Struct, frozen=True):
    """The process of an agent is gone.

    ``status`` is its exit status, negative for a signal; ``state`` what the agent said last;
    ``task`` what it was working on, and ``crashes`` how many processes that has ended by now.
    """

    agent: str
    status: int
    state: str = ""
    task: str | None = None
    crashes: int = 0


class Beat(msgspec.Struct, frozen=True):
    """An agent gave a sign of life."""

    agent: str


class Progressed(msgspec.Struct, frozen=True):
    """An agent began a step, and said how many seconds it may take."""

    agent: str
    deadline: float | None = None


class Tick(msgspec.Struct, frozen=True):
    """Some time has passed."""


class PauseAsked(msgspec.Struct, frozen=True):
    """All agents are to stop at their next safe point, within ``timeout`` seconds."""

    id: str
    timeout: float


class Wanted(msgspec.Struct, frozen=True):
    """What kind of checkpoint of the team is wanted, with what note and label."""

    kind: str = "manual"
    note: str | None = None
    label: str | None = None


class CheckpointAsked(msgspec.Struct, frozen=True):
    """A checkpoint of the team is requested, within ``limit`` seconds."""

    id: str
    limit: float
    wanted: Wanted = Wanted()


class EndAsked(msgspec.Struct, frozen=True):
    """All agents are to end at once."""


class Answered(msgspec.Struct, frozen=True):
    """An agent is at the safe point that was asked for."""

    agent: str


class Health(msgspec.Struct, frozen=True):
    """The health command of an agent was run."""

    agent: str
    ok: bool


Stimulus = (
    Begin
    | Started
    | CannotStart
    | Exited
    | Beat
    | Progressed
    | Tick
    | PauseAsked
    | CheckpointAsked
    | EndAsked
    | Answered
    | Health
)


class Start(msgspec.Struct, frozen=True):
    """Start a process for an agent; ``restarts`` is how often it was started before."""

    agent: str
    restarts: int = 0


class Kill(msgspec.Struct, frozen=True):
    """Send a signal to the processes of an agent."""

    agent: str
    signal: int
    why: str = ""


class RequestSafePoint(msgspec.Struct, frozen=True):
    """Ask the agents for a safe point, until the deadline on the machine's clock."""

    kind: str
    id: str
    deadline: float


class TakeCheckpoint(msgspec.Struct, frozen=True):
    """Take a checkpoint; ``id`` is that of the request it answers, if it answers one."""

    kind: str
    note: str
    id: str | None = None
    answered: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    label: str | None = None


class Ended(msgspec.Struct, frozen=True):
    """Write down that an agent's process is not coming back for now, and in which state."""

    agent: str
    state: str


class Delay(msgspec.Struct, frozen=True):
    """Say that an agent will be started again, and when."""

    agent: str
    seconds: float
    reason: str


class Quarantine(msgspec.Struct, frozen=True):
    """Fail a task that ends every process that works on it."""

    agent: str
    task: str
    crashes: int


class Escalate(msgspec.Struct, frozen=True):
    """Give an agent up, and tell a person why."""

    agent: str
    reason: str


class Finish(msgspec.Struct, frozen=True):
    """Stop supervising: ``done``, ``failed`` or ``paused``."""

    status: str


Action = (
    Start
    | Kill
    | RequestSafePoint
    | TakeCheckpoint
    | Ended
    | Delay
    | Quarantine
    | Escalate
    | Finish
)
