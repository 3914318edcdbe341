"""The result of a drill, and its record: an event, and ``control.drill`` of the document.

The record is outside of what a restore changes, so a rollback does not forget the last drill.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from mulligan.decoding import ready
from mulligan.document.fold import Change, event_change
from mulligan.document.values import freeze
from mulligan.model import Problem
from mulligan.session import Session
from mulligan.upkeep.recorded import plain, recorded_problems

PASSED = "drill.passed"
FAILED = "drill.failed"

DRILL = "drill"
"""Where in ``control`` the last result is."""

CommandKind = Literal["drill", "health"]


class CommandRun(msgspec.Struct, frozen=True):
    """One command that a drill ran; ``exit_status`` is None if it timed out or did not start."""

    agent: str
    kind: CommandKind
    exit_status: int | None
    seconds: float


class Loss(msgspec.Struct, frozen=True):
    """What would be lost if the workspace were lost now (RPO).

    That is what is newer than the newest checkpoint: its age, the events since, and the changed
    paths in the workspace; ``paths`` is None if the drill had no workspace to compare.
    """

    checkpoint: str | None
    age_seconds: float | None
    events: int
    paths: int | None


class DrillResult(msgspec.Struct, frozen=True):
    """How a drill of a point went.

    ``recovery_seconds`` is the measured recovery time (RTO). ``events`` were replayed from the
    first one, and ``keyframes`` compared on the way. ``problem_count`` counts all problems, also
    those that the record of an earlier drill does not name. ``leftover`` is a scratch directory
    that could not be removed; the next drill tries again.
    """

    session: str
    seq: int
    checkpoint: str | None
    at: datetime
    files: int
    file_bytes: int
    events: int
    keyframes: int
    commands: tuple[CommandRun, ...]
    recovery_seconds: float
    seconds: float
    loss: Loss
    problem_count: int
    problems: tuple[Problem, ...]
    leftover: str | None = None

    @property
    def ok(self) -> bool:
        """Whether everything came back as it was."""
        return not self.problem_count


def drill_change(result: DrillResult) -> Change:
    """Return the event that records a drill."""
    recorded = msgspec.structs.replace(result, problems=recorded_problems(result.problems))
    value = freeze(plain(recorded), ("control", DRILL))
    return event_change(
        PASSED if result.ok else FAILED,
        control=[[[DRILL], value]],
        session=result.session,
        seq=result.seq,
        checkpoint=result.checkpoint,
        recovery_seconds=result.recovery_seconds,
        problems=result.problem_count,
    )


def last_drill(session: Session) -> DrillResult | None:
    """Return the last drill of a session; None if there was none."""
    found = session.internal.control(DRILL)
    return None if found is None else msgspec.convert(found, ready(DrillResult))
