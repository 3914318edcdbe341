"""Any interleaving of acts, crashes, restores, undos and forks keeps the ledger consistent."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import mulligan
from mulligan import Checkpoint, Effect, Session
from mulligan.errors import EffectInDoubt, LeftBehind, NothingToUndo
from mulligan.session.write import leases

NAMES = ("a", "b", "c")
KNOWN = ("done", "in_doubt", "left_behind")


class Crash(BaseException):
    """The end of the process at some place of an act."""


class EffectMachine(RuleBasedStateMachine):
    """A world that counts, and a session that must never do an act twice."""

    def __init__(self) -> None:
        super().__init__()
        self.world: Counter[str] = Counter()
        self.undone: Counter[str] = Counter()
        self.points: list[Checkpoint] = []
        self.forks = 0
        self._patch = pytest.MonkeyPatch()
        # Every act is that of a process that is gone as soon as one asks: a crash needs no kill.
        gone = str(leases.Holder(leases.this_holder().machine, 2**22 + 7, 1))
        self._patch.setattr(leases, "this_process", lambda: gone)
        self.store = mulligan.open("memory:")
        self.session = self.opened("run")

    def teardown(self) -> None:
        self._patch.undo()
        self.store.close()

    def opened(self, name: str) -> Session:
        session = self.store.session(name)
        session.effects.on("reversible", undo=self.undo_act)
        return session

    def undo_act(self, effect: Effect) -> None:
        self.undone[effect.intent] += 1

    @initialize()
    def first_point(self) -> None:
        self.points.append(self.session.checkpoint())

    @rule(
        name=st.sampled_from(NAMES),
        kind=st.sampled_from(["irreversible", "reversible"]),
        crash=st.sampled_from(["no", "no", "before", "after", "fails"]),
    )
    def act(self, name: str, kind: Any, crash: str) -> None:
        """Act once per name and kind; the program may die before or after the act itself."""
        intent = f"{kind} {name}"
        try:
            with self.session.effect(kind, intent=intent, key=name, kind=kind) as effect:
                if not effect.settled:
                    self._do(intent, crash)
                    effect.result = intent
            assert effect.result == intent
        except (Crash, EffectInDoubt, OSError):
            pass

    def _do(self, intent: str, crash: str) -> None:
        if crash == "before":
            self._die()
        if crash == "fails":
            raise OSError("refused")
        self.world[intent] += 1
        if crash == "after":
            self._die()

    def _die(self) -> None:
        """End without a trace: what the block would write on leaving is not written."""
        self.session = self.opened(self.session.name)
        raise Crash

    @rule(step=st.sampled_from(NAMES))
    def step(self, step: str) -> None:
        assert self.session.step(step, str.upper, step) == step.upper()

    @rule()
    def restart(self) -> None:
        self.session = self.opened(self.session.name)

    @rule()
    def settle(self) -> None:
        """A person looks at the world and says what happened."""
        for doubt in self.session.effects.list(in_doubt=True):
            happened = self.world[doubt.intent] > self.undone[doubt.intent]
            result = doubt.intent if happened else None
            self.session.effects.settle(doubt.id, "done" if happened else "failed", result=result)

    @rule()
    def checkpoint(self) -> None:
        self.points.append(self.session.checkpoint())

    @rule(number=st.integers(0, 100), accept=st.booleans())
    def restore(self, number: int, accept: bool) -> None:
        point = self.points[number % len(self.points)]
        plan = self.session.effects.plan(point)
        before = self.session.head
        try:
            self.session.restore(point, accept_left_behind=accept)
        except LeftBehind:
            assert plan.left_behind
            assert not accept
            assert self.session.head == before
        else:
            assert accept or not plan.left_behind
            told = self.session.state.get("outside", {})
            assert {effect.id for effect in plan.left_behind} <= told.keys()
            assert not {effect.id for effect in plan.compensated} & told.keys()

    @rule(mode=st.sampled_from(["undo", "redo"]))
    def walk(self, mode: str) -> None:
        with suppress(NothingToUndo):
            getattr(self.session, mode)(accept_left_behind=True)

    @precondition(lambda self: self.forks < 4)
    @rule(number=st.integers(0, 100))
    def fork(self, number: int) -> None:
        self.forks += 1
        # On its own timeline: what a sibling did is in another world.
        points = self.session.checkpoints()
        point = points[number % len(points)]
        self.session = self.opened(self.session.fork(point, f"fork-{self.forks}").name)

    @invariant()
    def nothing_happens_twice(self) -> None:
        for intent, count in self.world.items():
            assert count - self.undone[intent] in (0, 1), intent

    @invariant()
    def what_happened_is_known(self) -> None:
        known = {effect.intent: effect for effect in self.session.effects}
        for intent, count in self.world.items():
            if count > self.undone[intent]:
                assert known[intent].status in KNOWN, intent

    @invariant()
    def what_is_outside_is_in_the_ledger(self) -> None:
        known = {effect.id: effect.status for effect in self.session.effects}
        for id in self.session.state.get("outside", {}):
            assert known[id] in ("left_behind", "in_doubt")
        left = {id for id, status in known.items() if status == "left_behind"}
        assert left <= self.session.state.get("outside", {}).keys()


TestEffectMachine = EffectMachine.TestCase
