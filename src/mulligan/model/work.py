"""Tasks, messages, effects and tool calls of agents."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

TaskStatus = Literal["pending", "in_progress", "completed", "failed", "skipped"]

AgentState = Literal["starting", "planning", "working", "waiting", "suspended", "done", "failed"]

Priority = Literal["low", "normal", "high", "urgent"]

EffectKind = Literal["local", "idempotent", "reversible", "irreversible"]
"""How far an effect reaches: local ones are undone by a restore, idempotent ones may be repeated,
reversible ones have a compensation."""

EffectStatus = Literal[
    "intended",
    "approved",
    "denied",
    "done",
    "failed",
    "in_doubt",
    "compensated",
    "left_behind",
]

Stakes = Literal["low", "normal", "high"]

Approval = Literal["auto", "ask", "deny"]

Repeat = Literal["reuse", "ask", "allow"]
"""What is done when an effect was done beyond the point that a session went back to."""

CallStatus = Literal["called", "returned", "failed", "in_doubt"]


class Task(msgspec.Struct, frozen=True):
    """A subtask: ``status`` is pending, in_progress, completed, failed or skipped.

    ``after`` names the tasks that must be done before, ``order`` is its position in the plan,
    ``data`` belongs to the user.
    """

    id: str
    title: str
    status: TaskStatus
    order: int
    after: tuple[str, ...] = ()
    parent: str | None = None
    owner: str | None = None
    attempts: int = 0
    progress: float | None = None
    note: str | None = None
    result: Any = None
    error: str | None = None
    data: Any = None


class Message(msgspec.Struct, frozen=True):
    """A message in an agent's mailbox.

    ``redelivered`` means that an earlier process received it and ended before acknowledging it.
    """

    id: str
    to: str
    sender: str
    subject: str
    body: Any
    priority: Priority
    requires_ack: bool
    sent: datetime
    redelivered: bool = False


class Question(msgspec.Struct, frozen=True):
    """A request for approval, and its answer: ``by`` is a person, ``timeout`` or ``rule``."""

    at: datetime
    expires: datetime | None = None
    by: str | None = None
    answered: datetime | None = None
    note: str | None = None


class Effect(msgspec.Struct, frozen=True):
    """An act on the outside world, as the ledger of a session has it.

    ``intent`` is what is to be done, as approved; ``seq`` is the event that first named it.
    ``acting`` is the process that acts or acted. ``undo`` says how it is compensated: a command, or
    True for a function of the program. ``is_pending`` says that it waits for approval.
    """

    id: str
    name: str
    kind: EffectKind
    status: EffectStatus
    intent: Any = None
    key: str | None = None
    agent: str = ""
    task: str | None = None
    stakes: Stakes = "normal"
    at: datetime | None = None
    seq: int = 0
    attempts: int = 0
    result: Any = None
    error: str | None = None
    question: Question | None = None
    acting: str | None = None
    undo: list[str] | bool = False

    @property
    def is_pending(self) -> bool:
        """Whether it waits for approval."""
        return self.status == "intended" and self.acting is None and self.question is not None


class EffectPlan(msgspec.Struct, frozen=True):
    """What going back to a point means for the effects after it.

    ``compensated`` are undone, in this order; ``left_behind`` stay in the world and have to be
    accepted; ``repeatable`` stay, too, and may happen again.
    """

    compensated: tuple[Effect, ...] = ()
    left_behind: tuple[Effect, ...] = ()
    repeatable: tuple[Effect, ...] = ()

    def __bool__(self) -> bool:
        """Whether there are effects after the point."""
        return bool(self.compensated or self.left_behind or self.repeatable)


class EffectRule(msgspec.Struct, frozen=True, kw_only=True):
    """What is decided about the effects whose name matches: None leaves it to later rules.

    ``kind`` and ``stakes`` limit the rule to effects of that kind, or of at least those stakes.
    """

    name: str = "*"
    kind: EffectKind | None = None
    stakes: Stakes | None = None
    approval: Approval | None = None
    timeout: float | None = None
    repeat: Repeat | None = None
    identity: tuple[str, ...] | None = None
    checkpoint: bool | None = None


class ToolCall(msgspec.Struct, frozen=True):
    """One call of a tool: what it was given, and its result.

    ``before`` and ``after`` are the checkpoints around it. ``process`` is a process that it
    started, ``files`` are the paths that it changed, where that is known.
    """

    id: str
    name: str
    status: CallStatus
    args: Any = None
    agent: str | None = None
    task: str | None = None
    at: datetime | None = None
    seq: int | None = None
    result: Any = None
    error: str | None = None
    before: str | None = None
    after: str | None = None
    acting: str | None = None
    process: str | None = None
    files: list[str] | None = None
