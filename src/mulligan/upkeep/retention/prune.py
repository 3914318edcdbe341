"""Pruning: remove the checkpoints that the retention policy does not keep.

Decide, remove from the journal, fold old events, then give the space back: the order of
docs/design/0006-upkeep.md. Checkpoints go in slices, each in one short transaction together with
the event ``upkeep.pruned`` that says what went and by which rules. A slice first looks at what was
written since the decision, and the decision is made again if that might change it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial

import msgspec

from mulligan.check.older_copy import refuse_older_copy
from mulligan.config.tables import TableReader
from mulligan.document import nodes
from mulligan.document.document import MISSING
from mulligan.document.fold import (
    CONTROL,
    RESTORE_BEGUN,
    RESTORED,
    Change,
    event_change,
    new_event,
)
from mulligan.document.history import document_at
from mulligan.engine import Engine
from mulligan.errors import DiskFull, InvalidWorkflow
from mulligan.failpoints import Failpoint
from mulligan.journal.copies import copy_removals
from mulligan.journal.protocol import Txn, View
from mulligan.model import NewEvent, ObjectKind
from mulligan.session.names import UPKEEP
from mulligan.session.parts.operations import FAILED_OPERATIONS
from mulligan.timeline.labels import DROPPED
from mulligan.timeline.marks import MARKED
from mulligan.timeline.pinned import CHECKPOINT_PINNED, CHECKPOINT_UNPINNED
from mulligan.timeline.pruned import PRUNED
from mulligan.upkeep.retention.candidates import Gatherer, SessionFacts
from mulligan.upkeep.retention.freed import TreeBytes
from mulligan.upkeep.retention.policy import Policy, parse_policy
from mulligan.upkeep.retention.rulings import Candidate, RetentionPlan, Ruling, plan_retention
from mulligan.upkeep.slices import SliceSize, Stop, never
from mulligan.upkeep.space.fold import fold_session
from mulligan.upkeep.space.needed import Needs
from mulligan.upkeep.space.reclaim_space import Reclaimed, reclaim

ACTOR = "upkeep"

DELETED, BY_HAND = "deleted", "It was deleted by hand."
"""The rule, and the reason, of a checkpoint that a person or a program deleted."""

SLICE_CHECKPOINTS = 256
"""How many checkpoints one transaction removes at most; on a slow disk, fewer."""

MAX_BEHIND = 64
"""How many new events may be read inside a transaction; more are read before it."""

MAX_PLANS = 5
"""How often it is decided again because of what others write; the next run does the rest."""

_DECISIVE = {
    RESTORE_BEGUN,
    RESTORED,
    MARKED,
    DROPPED,
    CHECKPOINT_PINNED,
    CHECKPOINT_UNPINNED,
    "operation.begun",
    "recovery.begun",
}
"""Events that may make a checkpoint needed, or change what is recorded of one."""


Adjust = Callable[[Policy], Policy]
"""Changes a policy as the command line says."""

Refuse = Callable[[Sequence[Candidate], frozenset[tuple[str, str]]], None]
"""Raises an error if one of some checkpoints must stay."""


class PrunePlan(msgspec.Struct, frozen=True):
    """What a prune keeps and removes, of which sizes; ``heads`` is what it was decided on."""

    plan: RetentionPlan
    candidates: tuple[Candidate, ...]
    heads: dict[int, int]
    size: int
    quota: int | None
    freed: int | None = None
    """The bytes of files that only the removed checkpoints hold; None if it was not counted."""


class Pruned(msgspec.Struct, frozen=True):
    """What a prune did: checkpoints and events removed, and the store's size before and after."""

    plan: PrunePlan
    removed: int
    events: int = 0
    objects: int = 0
    size_before: int = 0
    size_after: int = 0
    stopped: bool = False
    longest_hold: float = 0.0
    """The longest that writers had to wait for one slice, in seconds: how long it held the lock."""

    @property
    def freed_now(self) -> int:
        """How many bytes the store became smaller; the rest is freed when packs are rewritten."""
        return max(0, self.size_before - self.size_after)


class Pruner:
    """Prunes one store; keeps what it has read of checkpoints for the next time."""

    def __init__(self, engine: Engine, policy: Policy, adjust: Adjust = lambda p: p) -> None:
        """Take the store's policy, and what changes it and those of workflows."""
        self._engine = engine
        self._policy = adjust(policy)
        self._adjust = adjust
        self._gatherer = Gatherer(engine)
        self._slice = SliceSize(engine.clock, SLICE_CHECKPOINTS)
        self._longest_hold = 0.0

    def plan(self, cleared: Collection[str] = (), *, count_bytes: bool = False) -> PrunePlan:
        """Return what a prune would keep and remove, changing nothing.

        Bytes are counted if requested, or if the quota needs them.
        """
        now = self._engine.clock.now()
        sessions = self._gatherer.sessions()
        policies = {facts.record.name: self._policy_of(facts) for facts in sessions}
        candidates = self._gatherer.candidates(sessions, policies, now)
        quotas = [policy.quota for policy in (self._policy, *policies.values()) if policy.quota]
        size = self._engine.storage.size()
        plan = partial(
            plan_retention, self._policy, now=now, cleared=cleared, used=size, policies=policies
        )
        found = plan(candidates)
        if quotas and size > min(quotas):
            candidates = self._with_bytes(candidates)
            found = plan(candidates)
        freed = None
        if count_bytes:
            found, freed = self._explained(found)
        heads = {facts.record.number: facts.head for facts in sessions}
        return PrunePlan(found, tuple(candidates), heads, size, min(quotas, default=None), freed)

    def run(
        self,
        cleared: Collection[str] = (),
        stop: Stop = never,
        *,
        count_bytes: bool = False,
    ) -> Pruned:
        """Prune, and release the space; the caller holds the upkeep lock, and no pin."""
        # Before the first commit, after which it could not be told any more.
        refuse_older_copy(self._engine)
        before = self._engine.storage.size()
        if self._is_over_quota() and not stop():
            # First without any loss: what nothing refers to must not cost checkpoints.
            self._reclaim(stop)
        plan = self.plan(cleared, count_bytes=count_bytes)
        total = self.apply(plan, cleared, stop)
        events = 0 if stop() else self._fold(stop)
        if total or events:
            self._copy_removals()
        reclaimed = Reclaimed(stopped=True) if stop() else self._reclaim(stop)
        return Pruned(
            plan,
            total,
            events=events,
            objects=reclaimed.removed,
            size_before=before,
            size_after=self._engine.storage.size(),
            stopped=reclaimed.stopped,
            longest_hold=max(self._longest_hold, self._slice.longest),
        )

    def _reclaim(self, stop: Stop) -> Reclaimed:
        done = reclaim(self._engine, stop)
        self._longest_hold = max(self._longest_hold, done.longest_hold)
        return done

    def _is_over_quota(self) -> bool:
        quotas = [self._policy_of(facts).quota for facts in self._gatherer.sessions()]
        known = [quota for quota in (self._policy.quota, *quotas) if quota is not None]
        return bool(known) and self._engine.storage.size() > min(known)

    def apply(self, plan: PrunePlan, cleared: Collection[str] = (), stop: Stop = never) -> int:
        """Remove the checkpoints of a plan, and no bytes yet; return how many.

        If something was written meanwhile that may need a checkpoint, it is decided again. The
        caller holds the upkeep lock.
        """
        total = 0
        # Bounded: in a busy session, something may be written during every attempt.
        for _ in range(MAX_PLANS):
            removed = len(self._apply_once(plan, stop))
            total += removed
            if removed == len(plan.plan.remove) or stop():
                break
            plan = self.plan(cleared)
        return total

    def delete(self, ids: Collection[str], refuse: Refuse) -> set[str]:
        """Remove chosen checkpoints, and return the ids of those that are gone.

        ``refuse`` gets them, with all that is needed and the newest of each session by its name,
        and raises an error if one must stay. Fewer are removed if something was written meanwhile
        that may need one; some may have been removed by others. The caller holds the upkeep lock.
        """
        sessions = self._gatherer.sessions()
        policies = {facts.record.name: self._policy_of(facts) for facts in sessions}
        now = self._engine.clock.now()
        found = self._gatherer.candidates(sessions, policies, now)
        heads = {facts.record.number: facts.head for facts in sessions}
        with self._engine.read() as view:
            places = [(f.record.name, view.head(f.record.number).checkpoint) for f in sessions]
        newest = frozenset((name, place[1]) for name, place in places if place)
        refuse([one for one in found if one.id in ids], newest)
        rulings = tuple(
            Ruling(
                session=one.session,
                id=one.id,
                seq=one.seq,
                keep=False,
                rule=DELETED,
                reason=BY_HAND,
            )
            for one in found
            if one.id in ids
        )
        plan = PrunePlan(RetentionPlan(rulings=rulings), (), heads, 0, None)
        gone = set(ids) - {one.id for one in found}
        return gone | {ruling.id for ruling in self._apply_once(plan, never)}

    def _fold(self, stop: Stop) -> int:
        """Fold the events before the windows of all sessions; return how many are gone."""
        now, needs, events = self._engine.clock.now(), Needs(self._engine), 0
        for facts in self._gatherer.sessions():
            policy = self._policy_of(facts)
            folded = fold_session(
                self._engine,
                facts.record,
                now - timedelta(seconds=policy.window),
                stop=stop,
                undo_since=now - timedelta(seconds=policy.undo_window),
                needs=needs,
            )
            events += folded.events
            self._longest_hold = max(self._longest_hold, folded.longest_hold)
        return events

    def _copy_removals(self) -> None:
        """Copy the records of folds and pruned checkpoints to the objects, for a repair."""
        for facts in self._gatherer.sessions():
            number = facts.record.number
            # Only a copy: on a full disk, giving space back is more urgent.
            with suppress(DiskFull), self._engine.pin():
                bundle = self._engine.bundle()
                with self._engine.read() as view:
                    digest = copy_removals(view, number, bundle.put)
                with self._slice.single(self._engine.write(bundle, session=number)) as txn:
                    txn.put_copy(number, 0, 0, digest)

    def _policy_of(self, facts: SessionFacts) -> Policy:
        """Return the policy of a session: that of its workflow, or else of the store."""
        if not facts.retention:
            return self._policy
        name = f"the workflow of session {facts.record.name!r}"
        return self._adjust(parse_policy(facts.retention, TableReader("", name, InvalidWorkflow)))

    def _with_bytes(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates, each with what is freed once it and all older ones are gone."""
        counted = TreeBytes(self._engine)
        newest_first = sorted(candidates, key=lambda one: one.time, reverse=True)
        sizes = {one.id: counted.add(self._gatherer.facts(one.id).tree) for one in newest_first}
        return [msgspec.structs.replace(one, bytes_freed=sizes[one.id]) for one in candidates]

    def _explained(self, plan: RetentionPlan) -> tuple[RetentionPlan, int]:
        """Return the plan with the bytes that each removal frees, and their sum.

        What a checkpoint that is kept holds too is not counted; what several removed ones share
        counts for the newest of them.
        """
        counted = TreeBytes(self._engine)
        for ruling in plan.keep:
            counted.add(self._gatherer.facts(ruling.id).tree)
        newest_first = sorted(plan.remove, key=lambda one: one.seq, reverse=True)
        sizes = {one.id: counted.add(self._gatherer.facts(one.id).tree) for one in newest_first}
        rulings = tuple(
            msgspec.structs.replace(one, bytes_freed=sizes.get(one.id)) for one in plan.rulings
        )
        return msgspec.structs.replace(plan, rulings=rulings), sum(sizes.values())

    def _apply_once(self, plan: PrunePlan, stop: Stop) -> list[Ruling]:
        """Remove checkpoints in slices; return those that were removed."""
        removed: list[Ruling] = []
        with self._engine.read() as view:
            names = view.names()
        for session, rulings in _by_session(plan.plan.remove).items():
            # A session that was deleted since has lost its name: it must be decided again.
            number, rest = names.get(session), rulings
            while rest:
                if stop() or number is None:
                    return removed
                done = self._remove(number, rest[: self._slice.now], plan.heads)
                if not done:
                    return removed
                removed += rest[:done]
                rest = rest[done:]
        return removed

    def _remove(self, number: int, rulings: Sequence[Ruling], heads: dict[int, int]) -> int:
        """Remove checkpoints of a session in one transaction; return for how many it had time.

        None are removed if it must be decided again.
        """
        if not self._look(heads):
            return 0
        # Pinned: the event may refer to objects.
        with self._engine.pin():
            bundle = self._engine.bundle()
            put = partial(bundle.put, ObjectKind.VALUE)
            with self._engine.read() as view:
                control = self._control(view, number, rulings)
            # Before the transaction: writers would wait for the sync of its objects.
            event = new_event(_change(rulings, control), put)
            write = self._engine.write(bundle, session=number)
            with self._slice.transaction(write) as txn:
                # Looked at again inside: a restore or a fork may have started since.
                if _behind(txn, heads) > MAX_BEHIND or not _is_settled(txn, heads):
                    return 0
                done = 0
                for part in self._slice.parts(rulings):
                    txn.prune(number, [ruling.seq for ruling in part])
                    done += len(part)
                self._engine.failpoint(Failpoint.PRUNE_REMOVED)
                if done < len(rulings):
                    event = new_event(_change(rulings[:done], control), put)
                self._append(txn, number, event)
                heads[number] = txn.head(number).seq
        self._engine.failpoint(Failpoint.PRUNE_COMMITTED)
        return done

    def _look(self, heads: dict[int, int]) -> bool:
        """Look at what was written since the plan; return whether the plan still holds."""
        with self._engine.read() as view:
            if not _is_settled(view, heads):
                return False
            heads.update({r.number: view.head(r.number).seq for r in view.sessions()})
        return True

    def _append(self, txn: Txn, number: int, event: NewEvent) -> None:
        txn.append(
            number,
            [event],
            actor=UPKEEP,
            epoch=0,
            time=self._engine.clock.now(),
            fenced=False,
        )

    def _control(self, view: View, number: int, rulings: Sequence[Ruling]) -> _Control:
        """Return what was recorded of the checkpoints and goes with them, by their ids."""
        head = view.head(number).seq
        document = document_at(view, number, head, self._engine.load)
        return {
            ruling.id: [
                [[place, ruling.id]]
                for place in ("marks", FAILED_OPERATIONS)
                if document.find((*CONTROL, place, ruling.id)) is not MISSING
            ]
            for ruling in rulings
        }


_Control = dict[str, list[list[list[str]]]]


def _change(rulings: Sequence[Ruling], control: _Control) -> Change:
    """Return the event of a removal."""
    seqs: defaultdict[str, list[int]] = defaultdict(list)
    for ruling in rulings:
        seqs[ruling.rule].append(ruling.seq)
    return event_change(
        PRUNED,
        control=[place for ruling in rulings for place in control[ruling.id]],
        removed=len(rulings),
        first=rulings[0].seq,
        last=rulings[-1].seq,
        rules={rule: len(seqs[rule]) for rule in sorted(seqs)},
        seqs={rule: nodes.build_list(seqs[rule]) for rule in sorted(seqs)},
    )


def _by_session(rulings: Sequence[Ruling]) -> Mapping[str, list[Ruling]]:
    found: defaultdict[str, list[Ruling]] = defaultdict(list)
    for ruling in rulings:
        found[ruling.session].append(ruling)
    return found


def _behind(view: View, heads: Mapping[int, int]) -> int:
    """Return how many events were written since a plan; a new session counts as too many."""
    records = view.sessions()
    if len(records) != len(heads):
        return MAX_BEHIND + 1
    return sum(view.head(record.number).seq - heads[record.number] for record in records)


def _is_settled(view: View, heads: Mapping[int, int]) -> bool:
    """Whether nothing was written since a plan that could change it."""
    records = view.sessions()
    if any(record.number not in heads for record in records):
        return False  # a fork needs its origin
    return not any(event_kind in _DECISIVE for event_kind in _kinds(view, heads))


def _kinds(view: View, heads: Mapping[int, int]) -> Iterator[str]:
    for number, head in heads.items():
        for event in view.remaining(number, head + 1, view.head(number).seq):
            yield event.kind
