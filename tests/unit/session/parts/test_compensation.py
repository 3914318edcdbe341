"""A restore undoes what it can, says what it cannot, and goes on after an undo that failed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mulligan import Effect, Session, Store
from mulligan.errors import CompensationFailed, EffectInDoubt, LeftBehind, RestoreBusy
from mulligan.workspace.locks import lock_directory


class Cloud:
    """Machines that are started and stopped."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.stopped: list[str] = []
        self.fails: set[str] = set()

    def start(self, session: Session, name: str) -> bool:
        with session.effect("vm.start", intent={"name": name}, undo=self.stop) as effect:
            if not effect.settled:
                self.running.append(name)
                effect.result = {"vm": name}
        return effect.settled

    def stop(self, effect: Effect) -> None:
        name = effect.result["vm"]
        if name in self.fails:
            raise OSError(f"{name} does not answer")
        self.running.remove(name)
        self.stopped.append(name)


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


def mail(session: Session) -> None:
    with session.effect("mail.send", intent={"to": "ann"}):
        pass


def test_compensations_run_last_first_and_are_recorded(session: Session, cloud: Cloud) -> None:
    checkpoint = session.checkpoint()
    for name in "abc":
        cloud.start(session, name)
    plan = session.effects.plan(checkpoint)
    assert [effect.intent["name"] for effect in plan.compensated] == ["c", "b", "a"]
    assert cloud.running == ["a", "b", "c"]
    session.restore(checkpoint)
    assert cloud.stopped == ["c", "b", "a"]
    assert [effect.status for effect in session.effects] == ["compensated"] * 3
    assert session.state.get("outside", {}) == {}
    # It was undone, so it is done again.
    assert not cloud.start(session, "a")


@pytest.mark.parametrize("way", ["restore", "undo"])
def test_nothing_is_undone_beside_another_restore(
    session: Session, work: Path, cloud: Cloud, way: str
) -> None:
    checkpoint = session.checkpoint()
    if way == "undo":
        session.restore(checkpoint)
    cloud.start(session, "a")
    go_back = session.undo if way == "undo" else lambda: session.restore(checkpoint)
    with lock_directory(session.internal.engine, work), pytest.raises(RestoreBusy):
        go_back()
    assert cloud.running == ["a"]
    go_back()
    assert cloud.stopped == ["a"]


def test_irreversible_ones_have_to_be_accepted(
    store: Store, session: Session, work: Path, cloud: Cloud
) -> None:
    (work / "a.txt").write_text("one")
    checkpoint = session.checkpoint()
    (work / "a.txt").write_text("two")
    cloud.start(session, "a")
    mail(session)
    head = session.head
    plan = session.effects.plan(checkpoint)
    assert [effect.name for effect in plan.left_behind] == ["mail.send"]
    with pytest.raises(LeftBehind, match=r"1 effect .* mail\.send"):
        session.restore(checkpoint)
    assert (session.head, cloud.running, (work / "a.txt").read_text()) == (head, ["a"], "two")
    session.restore(checkpoint, accept_left_behind=True)
    assert (cloud.running, (work / "a.txt").read_text()) == ([], "one")
    restored = next(event for event in session.events() if event.kind == "restore.applied")
    [left] = [effect.id for effect in session.effects if effect.status == "left_behind"]
    assert restored.payload["left_behind"] == [left]
    assert store.verify().ok


def test_a_restore_with_nothing_behind_it_asks_nothing(session: Session) -> None:
    mail(session)
    checkpoint = session.checkpoint()
    session.state.set("memory", 1)
    assert not session.effects.plan(checkpoint)
    session.restore(checkpoint)
    # The undo of a restore that left nothing behind leaves nothing behind, either.
    session.undo()


def test_idempotent_ones_are_told_and_need_no_acceptance(session: Session) -> None:
    checkpoint = session.checkpoint()
    with session.effect("index.update", intent={}, kind="idempotent"):
        pass
    assert [e.name for e in session.effects.plan(checkpoint).repeatable] == ["index.update"]
    session.restore(checkpoint)
    assert [e.status for e in session.effects] == ["left_behind"]


def test_one_in_doubt_has_to_be_accepted(session: Session, cloud: Cloud) -> None:
    checkpoint = session.checkpoint()
    with (
        pytest.raises(EffectInDoubt),
        session.effect("vm.start", intent={}, undo=cloud.stop),
    ):
        raise EffectInDoubt("who knows")
    with pytest.raises(LeftBehind):
        session.restore(checkpoint)


def test_an_undo_that_raises_stops_the_restore_and_can_be_retried(
    session: Session, cloud: Cloud
) -> None:
    session.state.set("memory", 1)
    checkpoint = session.checkpoint()
    session.state.set("memory", 2)
    for name in "abc":
        cloud.start(session, name)
    cloud.fails = {"b"}
    with pytest.raises(CompensationFailed, match="b does not answer"):
        session.restore(checkpoint)
    assert (cloud.stopped, session.state.get("memory")) == (["c"], 2)
    errors = {effect.intent["name"]: effect.error for effect in session.effects}
    assert errors == {"a": None, "b": "OSError: b does not answer", "c": None}
    cloud.fails = set()
    session.restore(checkpoint)
    assert (cloud.stopped, session.state.get("memory")) == (["c", "b", "a"], 1)


def test_another_process_undoes_with_a_command_or_with_its_own_function(
    store: Store, session: Session, tmp_path: Path, cloud: Cloud
) -> None:
    checkpoint = session.checkpoint()
    seen = tmp_path / "seen"
    script = f"import sys; open({str(seen)!r}, 'w').write(sys.stdin.read())"
    with session.effect("a", intent={"n": 1}, undo=[sys.executable, "-c", script]) as effect:
        effect.result = 5
    cloud.start(session, "x")
    # Nothing in this process knows how to stop it: the command alone is known.
    other = store.session("run")
    with pytest.raises(LeftBehind, match=r"1 effect .*vm\.start"):
        other.restore(checkpoint)
    assert not seen.exists()
    other.effects.on("vm.start", undo=cloud.stop)
    other.restore(checkpoint)
    told: dict[str, Any] = json.loads(seen.read_text())
    assert (told["name"], told["intent"], told["result"]) == ("a", {"n": 1}, 5)
    assert cloud.stopped == ["x"]


def test_a_command_that_fails_is_reported_with_its_last_line(session: Session) -> None:
    checkpoint = session.checkpoint()
    script = "import sys; sys.exit('no such machine')"
    with session.effect("a", undo=[sys.executable, "-c", script]):
        pass
    with pytest.raises(CompensationFailed, match="exit code 1: no such machine"):
        session.restore(checkpoint)
    with session.effect("b", undo=["/nonexistent/command"]):
        pass
    with pytest.raises(CompensationFailed, match="FileNotFoundError"):
        session.restore(checkpoint)


def test_an_undo_goes_back_behind_effects_that_followed_the_restore(
    session: Session, cloud: Cloud
) -> None:
    session.state.set("memory", 1)
    checkpoint = session.checkpoint()
    session.state.set("memory", 2)
    session.restore(checkpoint)
    cloud.start(session, "a")
    session.undo()
    assert cloud.stopped == ["a"]
    mail(session)
    with pytest.raises(LeftBehind):
        session.redo()
    session.redo(accept_left_behind=True)
    assert session.state.get("memory") == 1


def test_what_was_accepted_once_is_not_asked_for_again(session: Session) -> None:
    first = session.checkpoint()
    mail(session)
    session.restore(first, accept_left_behind=True)
    second = session.checkpoint()
    session.state.set("memory", 1)
    session.restore(second)
    session.restore(first)
    assert [effect.status for effect in session.effects] == ["left_behind"]
    assert not session.effects.plan(first)
