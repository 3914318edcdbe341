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
    """The process of an agent has ended.

    ``status`` is its exit status, negative for a signal; ``state`` is what the agent reported last;
    ``task`` is what it was working on, and ``crashes`` how many processes that task has ended by
    now. ``output_closed`` is whether nothing reads its output any more.
    """

    agent: str
    status: int
    state: str = ""
    task: str | None = None
    crashes: int = 0
    output_closed: bool = False


class Beat(msgspec.Struct, frozen=True):
    """An agent gave a sign of life."""

    agent: str


class Progressed(msgspec.Struct, frozen=True):
    """An agent began a step, and announced how many seconds it may take."""

    agent: str
    deadline: float | None = None


class Tick(msgspec.Struct, frozen=True):
    """Some time has passed."""


class PauseAsked(msgspec.Struct, frozen=True):
    """All agents are to stop at their next safe point, within ``timeout`` seconds."""

    id: str
    timeout: float


class Wanted(msgspec.Struct, frozen=True):
    """The kind, note and label of the requested checkpoint of the team."""

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
    """An agent is at the requested safe point."""

    agent: str


class Health(msgspec.Struct, frozen=True):
    """The health command of an agent was run."""

    agent: str
    ok: bool


class Drifted(msgspec.Struct, frozen=True):
    """An agent drifts; ``rung`` is the response, see ``mulligan.drift.ladder``."""

    agent: str
    rung: str
    why: str


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
    | Drifted
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
    """Record that an agent's process is not restarted for now, and its state."""

    agent: str
    state: str


class Delay(msgspec.Struct, frozen=True):
    """Report that an agent will be started again, and when."""

    agent: str
    seconds: float
    reason: str


class Quarantine(msgspec.Struct, frozen=True):
    """Fail a task that ends every process that works on it."""

    agent: str
    task: str
    crashes: int


class Escalate(msgspec.Struct, frozen=True):
    """Give up on an agent, and tell a person why."""

    agent: str
    reason: str


class AskRestart(msgspec.Struct, frozen=True):
    """Ask one agent to end at its next safe point, because of drift."""

    agent: str
    rung: str


class Prepare(msgspec.Struct, frozen=True):
    """Make ready what an agent starts again with: an older state, a clean context."""

    agent: str
    rung: str


class Isolate(msgspec.Struct, frozen=True):
    """Do not start an agent again until a person says so."""

    agent: str
    why: str


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
    | AskRestart
    | Prepare
    | Isolate
    | Finish
)
