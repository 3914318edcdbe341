"""Recorded runs in the neutral format: one JSON object per line, steps with actor, action, result.

``{"id", "source", "steps": [{"i", "actor", "action", "args", "result", "error", "t", "ctx"}]}``.
Other fields, such as labels, are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from mulligan.decoding import ready
from mulligan.drift.observation import ACTION, MESSAGE, Observation, cut
from mulligan.errors import InvalidTrace

MODEL_PREFIX = "llm_"
"""Actions that are calls of a model: what it said, before anything was done."""

SAID = ("respond", "message")
"""Actions that only say something."""


class TraceStep(msgspec.Struct, frozen=True):
    """One step of a recorded run; ``t`` is in seconds, ``ctx`` the size of the context."""

    action: str
    i: int = 0
    actor: str = ""
    args: str = ""
    result: str = ""
    error: bool = False
    t: float | None = None
    ctx: int | None = None


class Trace(msgspec.Struct, frozen=True):
    """A recorded run."""

    id: str
    steps: list[TraceStep]
    source: str = ""


def observed(step: TraceStep) -> Observation:
    """Return what a step of a recorded run is to the signals."""
    said = step.action.startswith(MODEL_PREFIX) or step.action in SAID
    return Observation(
        MESSAGE if said else ACTION,
        step.i,
        actor=step.actor,
        name=step.action,
        text=cut(step.args),
        result=step.result,
        failed=step.error,
        time=step.t,
        context=step.ctx,
    )


def read_traces(file: Path) -> Iterator[Trace]:
    """Yield the runs of a file, which may be compressed by gzip; raises ``InvalidTrace``."""
    decoder = msgspec.json.Decoder(ready(Trace))
    try:
        for number, line in enumerate(_lines(file), 1):
            if not line.strip():
                continue
            try:
                yield decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise InvalidTrace(f"{file}:{number}: {error}.") from error
    except (OSError, EOFError) as error:
        raise InvalidTrace(f"{file} cannot be read: {error}.") from error


def _lines(file: Path) -> Iterator[bytes]:
    import gzip  # slow to import

    with file.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if not packed:
            yield from raw
            return
        with gzip.open(raw) as unpacked:
            yield from unpacked
