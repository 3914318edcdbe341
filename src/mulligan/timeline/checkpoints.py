"""Checkpoint records: the payload of the event, and the checkpoint it is read into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan import codec
from mulligan.codec import Ref
from mulligan.decoding import ready
from mulligan.document.fold import CHECKPOINT, Change
from mulligan.document.values import freeze
from mulligan.errors import DamagedJournal, MissingObject
from mulligan.journal import chain
from mulligan.model import ID_SIZE, Checkpoint, Cost, Coverage, Digest, Environment, Event, LeftOut

if TYPE_CHECKING:
    from mulligan.engine import Engine
    from mulligan.journal.protocol import View


PAGE_CHECKPOINTS = 64
"""How many entries of the index of checkpoints are read at once."""

LOST = "(lost)"
"""Stands for a part of a checkpoint's record that was lost to damage."""


def environment_value(environment: Environment) -> dict[str, Any]:
    """Return the environment as a frozen value; it is stored as an object once per change."""
    value: dict[str, Any] = msgspec.to_builtins(environment)
    return value


def left_out_value(left_out: list[LeftOut]) -> Any:
    """Return what a checkpoint leaves out as a frozen value; see ``Checkpointer``."""
    return freeze(msgspec.to_builtins(left_out))


def checkpoint_change(
    *,
    kind: str,
    label: str | None,
    note: str | None,
    parent: str | None,
    keyframe: Digest | None,
    environment: Digest,
    ms: float,
    size: int,
    safety: bool = False,
    tree: Digest | None = None,
    coverage: Coverage | None = None,
    left_out: Any = None,
    key: str | None = None,
    data: Any = None,
) -> Change:
    """Return the event that records a checkpoint; ``safety`` marks one taken by a restore.

    ``left_out`` replaces the list of the coverage in the payload, if it is already stored. ``data``
    is a frozen dictionary of the caller's own.
    """
    payload: dict[str, Any] = {
        "kind": kind,
        "label": label,
        "note": note,
        "parent": parent,
        "keyframe": keyframe,
        "environment": Ref(environment),
        "format": codec.FORMAT_VERSION,
        "schema": codec.SCHEMA_VERSION,
        "ms": ms,
        "bytes": size,
    }
    if safety:
        payload["safety"] = True
    if key is not None:
        payload["key"] = key
    if tree is not None:
        payload["workspace"] = tree
    if coverage is not None:
        payload["coverage"] = coverage_value(coverage, left_out)
    if data is not None:
        payload["data"] = data
    return CHECKPOINT, payload


def coverage_value(coverage: Coverage, left_out: Any = None) -> Any:
    """Return a coverage as a frozen value; ``left_out`` replaces its list, if already stored."""
    counts = msgspec.to_builtins(msgspec.structs.replace(coverage, left_out=[]))
    named = left_out_value(coverage.left_out) if left_out is None else left_out
    return {**freeze(counts), "left_out": named}


def read_coverage(engine: Engine, value: Any) -> Coverage | None:
    """Return the coverage stored in a value; None if there is none.

    Checkpoints that share a long list of left-out paths read it once.
    """
    # A short list is part of the event; a long one is an object that many checkpoints share.
    if not isinstance(value, dict) or isinstance(value["left_out"], list):
        return None if value is None else msgspec.convert(engine.plain(value), ready(Coverage))
    counts = msgspec.convert(engine.plain({**value, "left_out": []}), ready(Coverage))
    try:
        shared = engine.left_out(codec.encode(value["left_out"]))
    except MissingObject:
        return counts  # it was lost to damage; a repair has marked the checkpoint
    return msgspec.structs.replace(counts, left_out=list(shared))


def is_safety(event: Event) -> bool:
    """Whether a restore took this checkpoint to keep what was there before."""
    return bool(event.payload.get("safety"))


def read_checkpoint(engine: Engine, event: Event) -> Checkpoint:
    """Return the checkpoint that an event records."""
    if event.kind != CHECKPOINT:
        raise DamagedJournal(f"Event #{event.seq} of {event.session!r} is not a checkpoint.")
    payload = event.payload
    return Checkpoint(
        id=event.hash[:ID_SIZE].hex(),
        session=event.session,
        seq=event.seq,
        time=event.time,
        actor=event.actor,
        kind=payload["kind"],
        label=payload["label"],
        # A long note is a reference.
        note=payload["note"] and _note(engine, payload["note"]),
        parent=payload["parent"],
        keyframe=payload["keyframe"] and Digest(payload["keyframe"]),
        environment=_environment(engine, payload["environment"].digest),
        format=payload["format"],
        schema=payload["schema"],
        cost=Cost(payload["ms"], payload["bytes"]),
        safety=is_safety(event),
        workspace=payload.get("workspace") and Digest(payload["workspace"]),
        coverage=read_coverage(engine, payload.get("coverage")),
        key=payload.get("key"),
        data=_data(engine, payload["data"]) if "data" in payload else {},
    )


def _note(engine: Engine, note: Any) -> str:
    try:
        return str(engine.plain(note))
    except MissingObject:
        return LOST


def _data(engine: Engine, data: Any) -> dict[str, Any]:
    try:
        # Large values of it are references.
        return msgspec.convert(engine.plain(data), dict[str, Any])
    except MissingObject:
        return {}  # it was lost to damage; a repair has marked the checkpoint


def _environment(engine: Engine, digest: Digest) -> Environment:
    """Return an environment; one that was lost to damage must not hide its checkpoints."""
    try:
        return engine.environment(digest)
    except MissingObject:
        return Environment(platform=LOST, python=LOST, host=LOST, tools={}, variables={})


def read_checkpoints(
    engine: Engine, view: View, number: int, first: int, last: int, *, reverse: bool = False
) -> Iterator[Checkpoint]:
    """Yield the checkpoints of a timeline within ``first..last``, oldest first or newest first.

    Only those that are asked for are read.
    """
    known: Checkpoint | None = None
    for seq in _places(view, number, first, last, reverse=reverse):
        found = read_checkpoint(engine, event_at(view, number, seq))
        if known is not None:
            _check_neighbours(view, number, *((found, known) if reverse else (known, found)))
        yield found
        known = found


def _places(view: View, number: int, first: int, last: int, *, reverse: bool) -> Iterator[int]:
    """Yield the seqs of checkpoints, read from the index in pages."""
    while page := view.checkpoints(number, first, last, reverse=reverse, limit=PAGE_CHECKPOINTS):
        yield from (seq for seq, _ in page)
        if len(page) < PAGE_CHECKPOINTS:
            return
        first, last = (first, page[-1][0] - 1) if reverse else (page[-1][0] + 1, last)


def _check_neighbours(view: View, number: int, one: Checkpoint, other: Checkpoint) -> None:
    """Raise ``DamagedJournal`` if a checkpoint between two is missing.

    The index of checkpoints may lack one; the chain of parents shows it.
    """
    if other.parent == one.id or _has_pruned(view, number, one.seq, other.seq):
        return
    if not _has_lost(view, number, one.seq, other.seq):
        raise DamagedJournal(f"A checkpoint before #{other.seq} of {other.session!r} is missing.")


def _has_pruned(view: View, number: int, after: int, before: int) -> bool:
    """Whether retention removed checkpoints between two places on a timeline."""
    pruned = view.pruned_before(number, before - 1)
    if pruned is not None and pruned[0] > after:
        return True
    return bool(view.folded(number, after + 1, before - 1))


def _has_lost(view: View, number: int, after: int, before: int) -> bool:
    """Whether a repair found an event lost between two places: it may have been a checkpoint."""
    events = view.remaining(number, after + 1, before - 1)
    return any(event.kind == chain.LOST for event in events)


def event_at(view: View, number: int, seq: int) -> Event:
    """Return one event."""
    return next(iter(view.events(number, seq, seq)))
