"""A program is killed at every failpoint of steps, effects, approvals, undos and tool calls."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from mulligan import Effect, Session, Store
from mulligan.errors import EffectInDoubt
from mulligan.failpoints import Failpoint
from mulligan.testing import effects_chaos
from mulligan.testing.failpoints import kill_at
from mulligan.testing.stores import open_store
from tests.children import Tell, run_child

ACT_POINTS = [point for point in Failpoint if point.name.startswith(("STEP_", "EFFECT_", "TOOL_"))]
UNDO_POINTS = [point for point in Failpoint if point.name.startswith("COMPENSATION_")]
TRANSACTION = [Failpoint.JOURNAL_BEFORE_COMMIT, Failpoint.JOURNAL_COMMITTED]
NAMES = ("mail", "pay", "deploy", "step")


class World:
    """The outside world as a file: whatever was done to it is a line that no kill takes back."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def act(self, name: str) -> dict[str, str]:
        with self._path.open("ab", buffering=0) as file:
            os.write(file.fileno(), name.encode() + b"\n")
        return {"did": name}

    def undo(self, effect: Effect) -> None:
        self.act(f"-{effect.intent}")

    @property
    def done(self) -> Counter[str]:
        return Counter(self._path.read_text().split() if self._path.exists() else [])


def program(store: Store, world: World) -> None:
    """Act once of each kind; what is in doubt is looked up in the world and settled."""
    for _ in range(3):
        session = store.session("run")  # a handle counts its calls: each run has its own
        session.effects.rule("deploy", approval="ask")
        session.approvals.answer_with(lambda effect: True)
        try:
            _acts(session, world)
        except EffectInDoubt:
            for doubt in session.effects.list(in_doubt=True):
                happened = world.done[doubt.name]
                result = {"did": doubt.name} if happened else None
                session.effects.settle(doubt.id, "done" if happened else "failed", result=result)
        else:
            return
    raise AssertionError("still in doubt")


def _acts(session: Session, world: World) -> None:
    assert session.step("think", lambda: 42) == 42
    for name in ("mail", "pay", "deploy"):
        with session.effect(name, intent=name, key="1" if name == "pay" else None) as effect:
            if not effect.settled:
                effect.result = world.act(name)
        assert effect.result == {"did": name}
    assert session.durable(name="step", effect="step")(lambda: world.act("step"))() == {
        "did": "step"
    }
    with session.tools.call("look") as call:
        call.returned(1)
    session.step("end", lambda: 43)


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", [*ACT_POINTS, *TRANSACTION])
def test_killed_while_it_acts(tmp_path: Path, point: Failpoint, nth: int) -> None:
    world = World(tmp_path / "world")

    def run(tell: Tell, kills: bool = True) -> None:
        hook = kill_at(point, nth) if kills else lambda point: None
        with open_store(tmp_path / "store", failpoint=hook) as store:
            tell("started")
            program(store, world)

    killed = run_child(run)
    rare = point in (Failpoint.EFFECT_ASKED, Failpoint.EFFECT_ANSWERED) and nth > 1
    rare = rare or (point.name.startswith("TOOL_") and nth > 1)
    assert killed.by_sigkill or rare
    with open_store(tmp_path / "store") as store:
        session = store.session("run")
        known = {effect.name: effect.status for effect in session.effects}
        # Whatever happened is known, as done or as in doubt.
        for name in world.done:
            assert known.get(name) in ("done", "in_doubt")
        # A call without a return is in doubt.
        if point is Failpoint.TOOL_CALLED and not rare:
            assert [call.name for call in session.tools.list(in_doubt=True)] == ["look"]
    assert run_child(lambda tell: run(tell, kills=False)).finished
    assert world.done == dict.fromkeys(NAMES, 1)
    with open_store(tmp_path / "store") as store:
        assert store.verify().ok
        assert {e.status for e in store.session("run").effects} == {"done"}


@pytest.mark.parametrize("point", UNDO_POINTS)
@pytest.mark.parametrize("nth", [1, 2])
def test_killed_while_it_undoes(tmp_path: Path, point: Failpoint, nth: int) -> None:
    world = World(tmp_path / "world")
    with open_store(tmp_path / "store") as store:
        session = store.session("run")
        session.state.set("memory", 1)
        checkpoint = session.checkpoint().id
        session.state.set("memory", 2)
        for name in ("a", "b", "c"):
            with session.effect("start", intent=name, undo=world.undo):
                world.act(name)

    def run(tell: Tell, kills: bool = True) -> None:
        hook = kill_at(point, nth) if kills else lambda point: None
        with open_store(tmp_path / "store", failpoint=hook) as store:
            session = store.session("run")
            session.effects.on("start", undo=world.undo)
            session.restore(checkpoint)

    assert run_child(run).by_sigkill
    with open_store(tmp_path / "store") as store:
        assert store.session("run").state.get("memory") == 2
    assert run_child(lambda tell: run(tell, kills=False)).finished
    undone = world.done
    # The last one first, and each once, or twice where the kill was between act and record.
    assert all(undone[f"-{name}"] >= 1 for name in "abc")
    assert sum(undone[f"-{name}"] for name in "abc") <= 4
    with open_store(tmp_path / "store") as store:
        session = store.session("run")
        assert session.state.get("memory") == 1
        assert {e.status for e in session.effects} == {"compensated"}
        assert store.verify().ok


def test_an_approval_survives_the_death_of_all_processes(tmp_path: Path) -> None:
    world = World(tmp_path / "world")

    def agent(tell: Tell) -> None:
        with open_store(tmp_path / "store") as store:
            session = store.session("run")
            session.effects.rule("deploy", approval="ask")
            with session.effect("deploy", intent="v1") as effect:
                if not effect.settled:
                    world.act("deploy")

    assert not run_child(agent).finished  # parked: it ends with ApprovalPending
    with open_store(tmp_path / "store") as store:
        session = store.session("run")
        [waiting] = session.approvals.pending()
        start = session.checkpoint()
        session.approvals.approve(waiting.id)
        session.restore(start)
    assert run_child(agent).finished
    assert world.done == {"deploy": 1}
    # It is used up: a restore of the time when it was open brings no second one.
    with open_store(tmp_path / "store") as store:
        store.session("run").restore(start, accept_left_behind=True)
    assert run_child(agent).finished
    assert world.done == {"deploy": 1}


def test_a_short_turn_of_the_campaign(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--steps", "100", "--effects", "50", "--kills", "2", "--points", "3"]
    status = effects_chaos.main(arguments)
    assert status == 0, capsys.readouterr().out
