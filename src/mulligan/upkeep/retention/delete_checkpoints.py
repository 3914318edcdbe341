"""Deleting checkpoints by hand: those that nothing needs, in the way that pruning removes them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mulligan.errors import CheckpointNeeded, UnknownPoint
from mulligan.store import engine_of
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.retention.policy import Policy, read_policy
from mulligan.upkeep.retention.prune import Pruner
from mulligan.upkeep.retention.rulings import UNDO, Candidate

if TYPE_CHECKING:
    from mulligan.engine import Engine
    from mulligan.model import Checkpoint, SessionRecord
    from mulligan.session import Session
    from mulligan.store import Store
    from mulligan.timeline.points import PointLike

ATTEMPTS = 5
"""How often it is looked again at what needs them, because others write meanwhile."""


def delete_checkpoints(
    store: Store, session: Session, points: Iterable[PointLike]
) -> list[Checkpoint]:
    """Delete checkpoints of a session, and return them.

    Their ids, labels and keys are gone, and the next garbage collection erases the files that only
    they hold; names of files stay as long as later checkpoints are patches to their tree. The
    events between them stay: the state at any event is what it was. Raises
    ``CheckpointNeeded`` for one that is pinned, that a fork, an undo, an open operation or a
    restore needs, or that is the newest of a session; then none of them is deleted. A fork or a
    copy needs the one that it continues from, and all before it: they are its checkpoints, too.
    """
    chosen = {found.id: found for found in [_exactly(session, point) for point in points]}
    if not chosen:
        return []
    engine = engine_of(store)
    policy = Policy() if engine.directory is None else read_policy(engine.directory)
    pruner = Pruner(engine, policy)
    rest = set(chosen)
    refuse = partial(_refuse_needed, engine)
    with upkeep_lock(engine, wait=True):
        # First: their bytes must be erased, even if this process dies right after it.
        with engine.write() as txn:
            txn.note_deletion()
        for _ in range(ATTEMPTS):
            rest -= pruner.delete(rest, refuse)
            if not rest:
                break
    if rest:
        raise CheckpointNeeded(
            f"{len(rest)} of {len(chosen)} checkpoints were not deleted: other processes kept "
            "writing.",
            hint="Try again.",
        )
    return list(chosen.values())


def _exactly(session: Session, point: PointLike) -> Checkpoint:
    place = session.point(point)
    found = session.checkpoints.at(place)
    if found.seq != place.seq:
        raise UnknownPoint(
            f"#{place.seq} of session {place.session!r} is not a checkpoint.",
            hint=f"The one before it is {found.id[:12]}, #{found.seq}.",
        )
    return found


def _refuse_needed(
    engine: Engine, candidates: Sequence[Candidate], newest: frozenset[tuple[str, str]]
) -> None:
    with engine.read() as view:
        records = view.sessions()
    numbers = {one.name: one.number for one in records}
    for one in candidates:
        number, hint = numbers[one.session], "Nothing was deleted."
        forks = _forks(records, number)
        fork = next((name for name, last in forks.items() if one.seq <= last), None)
        if fork is not None:
            why = f"the fork {fork!r} has it, too"
            hint += f" `mulligan delete {shlex.quote(fork)}` deletes the fork."
        elif (found := next(_reasons(one, newest), None)) is None:
            continue
        elif found in one.needed_by and _is_left_origin(records, number, one.seq):
            why = "a session that was deleted began there"
            hint += " `mulligan prune` erases what is left of that session; then try again."
        else:
            why = found
        raise CheckpointNeeded(
            f"The checkpoint {one.id[:12]} (#{one.seq}) stays: {why}.", hint=hint
        )


def _is_left_origin(records: Sequence[SessionRecord], number: int, seq: int) -> bool:
    """Whether a session that was deleted, and is not erased yet, was forked from an event."""
    origins = (one.origin for one in records if one.deleted is not None and one.origin)
    return any((origin.session, origin.seq) == (number, seq) for origin in origins)


def _forks(records: Sequence[SessionRecord], number: int) -> dict[str, int]:
    """Return the sessions that have a part of another's timeline, with the last event of it."""
    found: dict[str, int] = {}
    for one in records:
        if one.origin is not None and one.origin.session == number:
            # Through a fork that was deleted, its own forks still have their part of that part.
            last = one.origin.seq
            those = {one.name: last} if one.deleted is None else _forks(records, one.number)
            found |= {name: min(seq, last) for name, seq in those.items()}
    return found


def _reasons(one: Candidate, newest: frozenset[tuple[str, str]]) -> Iterator[str]:
    # That of a fork without checkpoints of its own is before its origin, which is needed.
    if (one.session, one.id) in newest:
        yield f"it is the newest one of session {one.session!r}"
    if one.pinned:
        yield "it is pinned"
    if one.operation == "open":
        yield "an operation is in progress that would go back to it"
    for need in one.needed_by:
        yield "undo or redo may need it" if need == UNDO else need
