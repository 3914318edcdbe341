"""Deleting checkpoints by hand: those that nothing needs, in the way that pruning removes them."""

from __future__ import annotations

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
    store: Store, session: Session, points: Iterable[PointLike], *, spare_forks: bool = False
) -> list[Checkpoint]:
    """Delete checkpoints of a session, and return them.

    Their ids, labels and keys are gone, and the next garbage collection erases the files that only
    they hold; names of files stay as long as later checkpoints are patches to their tree. The
    events between them stay: the state at any event is what it was. Raises
    ``CheckpointNeeded`` for one that is pinned, that a fork, an undo, an open operation or a
    restore needs, or that is the newest of a session; then none of them is deleted. A fork needs
    the one that it continues from; with ``spare_forks`` also all before it, which are checkpoints
    of the fork, too.
    """
    chosen = {found.id: found for found in [_exactly(session, point) for point in points]}
    if not chosen:
        return []
    engine = engine_of(store)
    policy = Policy() if engine.directory is None else read_policy(engine.directory)
    pruner = Pruner(engine, policy)
    rest = set(chosen)
    refuse = _refuse_needed
    if spare_forks:
        refuse = partial(_refuse_shared, engine, session.internal.number)
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


def _refuse_needed(candidates: Sequence[Candidate], newest: frozenset[str]) -> None:
    for one in candidates:
        why = next(_reasons(one, newest), None)
        if why is not None:
            raise CheckpointNeeded(f"The checkpoint {one.id[:12]} (#{one.seq}) stays: {why}.")


def _refuse_shared(
    engine: Engine, number: int, candidates: Sequence[Candidate], newest: frozenset[str]
) -> None:
    _refuse_needed(candidates, newest)
    with engine.read() as view:
        last = _last_shared(view.sessions(), number)
    for one in candidates:
        if one.seq <= last:
            raise CheckpointNeeded(
                f"The checkpoint {one.id[:12]} (#{one.seq}) stays: a fork has it, too."
            )


def _last_shared(records: Sequence[SessionRecord], number: int) -> int:
    """Return the last event of a session that forks continue from which are not deleted, or 0."""
    forks = [
        (one, one.origin.seq) for one in records if one.origin and one.origin.session == number
    ]
    alive = (seq for one, seq in forks if one.deleted is None or _last_shared(records, one.number))
    return max(alive, default=0)


def _reasons(one: Candidate, newest: frozenset[str]) -> Iterator[str]:
    if one.id in newest:
        yield "it is the newest one of a session"
    if one.pinned:
        yield "it is pinned"
    if one.operation == "open":
        yield "an operation is in progress that would go back to it"
    for need in one.needed_by:
        yield "undo or redo may need it" if need == UNDO else need
