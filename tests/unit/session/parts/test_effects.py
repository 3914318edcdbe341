"""An effect is written down before it happens, is never repeated silently, and can be settled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mulligan import Session, Store
from mulligan.errors import (
    Conflict,
    EffectInDoubt,
    EffectRepeated,
    InvalidConfig,
    InvalidEffect,
    InvalidPath,
    StateError,
    UnknownEffect,
    UnstorableValue,
)
from mulligan.session.write import leases

MAIL = {"to": "ann@example.com", "text": "Hello"}


class World:
    """The outside world: what was done to it."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def send(self, session: Session, intent: Any = None, **options: Any) -> tuple[bool, Any]:
        """Send a mail as an agent does; return whether it was settled, and the result."""
        with session.effect("mail.send", intent=intent or MAIL, **options) as effect:
            if not effect.settled:
                self.done.append(effect.intent)
                effect.result = {"id": len(self.done)}
        return effect.settled, effect.result


class Dies(BaseException):
    """Stands for the end of the process in the middle of an act."""


def in_doubt(session: Session, **options: Any) -> str:
    """Leave an effect in doubt, and return its id."""
    with pytest.raises(Dies), session.effect("mail.send", intent=MAIL, **options) as effect:
        raise Dies
    return effect.id


@pytest.fixture
def world() -> World:
    return World()


def test_the_intent_is_durable_before_and_the_outcome_after(store: Store) -> None:
    session, other = store.session("run"), store.session("run")
    with session.effect("mail.send", intent=MAIL, key="order-7", reversible=False) as effect:
        [inside] = other.effects
        assert (inside.status, inside.intent, inside.result) == ("intended", MAIL, None)
        assert inside.acting is not None
        effect.result = {"id": 1}
    [after] = other.effects
    assert (after.id, after.status, after.result) == (effect.id, "done", {"id": 1})
    assert (after.kind, after.key, after.agent, after.attempts) == (
        "irreversible",
        "order-7",
        "main",
        1,
    )


@pytest.mark.parametrize("key", [None, "order-7"])
def test_what_was_done_is_settled_when_the_program_starts_again(
    store: Store, world: World, key: str | None
) -> None:
    assert world.send(store.session("run"), key=key) == (False, {"id": 1})
    seq = store.session("run").head.seq
    assert world.send(store.session("run"), key=key) == (True, {"id": 1})
    assert store.session("run").head.seq == seq
    assert len(world.done) == 1


def test_another_wording_is_the_same_intent_by_key_or_by_identity(
    store: Store, world: World
) -> None:
    session = store.session("run")
    session.effects.rule("mail.*", identity=["to"])
    world.send(session, {"to": "Ann@example.com ", "text": "Hello"})
    new = store.session("run")
    new.effects.rule("mail.*", identity=["to"])
    assert world.send(new, {"to": "ann@example.com", "text": "Good morning"})[0]
    assert not world.send(new, {"to": "bob@example.com", "text": "Hello"})[0]


def test_the_same_act_twice_is_two_effects(store: Store, world: World) -> None:
    session = store.session("run")
    assert [world.send(session) for _ in range(2)] == [(False, {"id": 1}), (False, {"id": 2})]
    new = store.session("run")
    assert [world.send(new) for _ in range(3)] == [
        (True, {"id": 1}),
        (True, {"id": 2}),
        (False, {"id": 3}),
    ]


def test_an_exception_makes_it_failed_and_a_retry_is_the_same_effect(
    store: Store, world: World
) -> None:
    session = store.session("run")
    with pytest.raises(OSError, match="no route"), session.effect("mail.send", intent=MAIL):
        raise OSError("no route")
    [effect] = session.effects
    assert (effect.status, effect.error) == ("failed", "OSError: no route")
    assert world.send(session) == (False, {"id": 1})
    [effect] = session.effects
    assert (effect.status, effect.attempts, effect.error) == ("done", 2, None)
    assert world.send(store.session("run"))[0]


def test_being_cancelled_in_the_middle_leaves_it_in_doubt(store: Store, world: World) -> None:
    session = store.session("run")

    async def main() -> None:
        async def act() -> None:
            with session.effect("mail.send", intent=MAIL):
                await asyncio.sleep(60)

        task = asyncio.create_task(act())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    with pytest.raises(EffectInDoubt):
        world.send(session)
    assert world.done == []


@pytest.mark.parametrize(
    ("found", "settled", "result", "sent"),
    [
        ({"id": 9}, True, {"id": 9}, 0),
        (True, True, True, 0),
        (False, False, {"id": 1}, 1),
        (None, None, None, 0),
    ],
)
def test_a_check_settles_it_from_the_outside_world(
    store: Store, world: World, found: Any, settled: bool | None, result: Any, sent: int
) -> None:
    session = store.session("run")
    in_doubt(session)
    if settled is None:
        with pytest.raises(EffectInDoubt):
            world.send(session, check=lambda intent: found)
    else:
        assert world.send(session, check=lambda intent: found) == (settled, result)
        assert [e.status for e in session.effects] == ["done"]
    assert len(world.done) == sent


def test_a_person_settles_it_once(store: Store, world: World) -> None:
    session = store.session("run")
    id = in_doubt(session, key="order-7")
    [doubt] = session.effects.list(in_doubt=True)
    assert doubt.id == id
    session.effects.settle(id[:6], "done", result={"id": 4}, note="seen in the log", by="ann")
    assert world.send(session, key="order-7") == (True, {"id": 4})
    event = next(e for e in session.events() if e.kind == "effect.settled")
    assert (event.payload["by"], event.payload["note"]) == ("ann", "seen in the log")
    with pytest.raises(Conflict, match="is done, not in doubt"):
        session.effects.settle(id, "failed")


def test_one_settled_as_failed_may_be_tried_again(store: Store, world: World) -> None:
    session = store.session("run")
    id = in_doubt(session)
    session.effects.settle(id, "failed")
    assert world.send(session) == (False, {"id": 1})


def test_an_idempotent_effect_in_doubt_is_repeated(store: Store, world: World) -> None:
    session = store.session("run")
    in_doubt(session, kind="idempotent")
    assert world.send(session, kind="idempotent") == (False, {"id": 1})
    assert [e.attempts for e in session.effects] == [2]


def test_one_whose_outcome_was_not_written_is_in_doubt(store: Store, world: World) -> None:
    session = store.session("run")
    with pytest.raises(UnstorableValue), session.effect("mail.send", intent=MAIL) as effect:
        effect.result = object()
    assert [e.status for e in session.effects] == ["failed"]
    with pytest.raises(EffectInDoubt), session.effect("mail.send", intent=MAIL):
        raise EffectInDoubt("the connection broke while it was sent")
    assert [e.status for e in session.effects] == ["in_doubt"]


def test_one_that_another_handle_performs_is_busy(store: Store, world: World) -> None:
    session, other = store.session("run"), store.session("run")
    with session.effect("mail.send", intent=MAIL, key="order-7"):
        with pytest.raises(Conflict, match="being performed"):
            world.send(other, key="order-7")
        with pytest.raises(Conflict, match="being performed"):
            other.effects.settle(session.effects.list()[0].id, "done")
    assert world.done == []


def test_one_of_another_machine_is_busy_until_a_person_settles_it(
    store: Store, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.session("run")
    with monkeypatch.context() as patched:
        patched.setattr(leases, "this_process", lambda: "elsewhere/7/7")
        session.effect("mail.send", intent=MAIL, key="1").__enter__()
    new = store.session("run")
    with pytest.raises(Conflict, match="performed by elsewhere"):
        world.send(new, key="1")
    new.effects.settle(new.effects.list()[0].id, "done", result=5)
    assert world.send(new, key="1") == (True, 5)


def test_a_settled_effect_takes_no_other_result(store: Store, world: World) -> None:
    world.send(store.session("run"), key="order-7")
    with (
        pytest.raises(InvalidEffect, match="done before"),
        store.session("run").effect("mail.send", intent=MAIL, key="order-7") as effect,
    ):
        effect.result = 5
    assert [e.status for e in store.session("run").effects] == ["done"]


def test_threads_act_at_once_and_the_same_intent_counts(store: Store, world: World) -> None:
    session = store.session("run")
    barrier = threading.Barrier(4)

    def act(number: int) -> None:
        barrier.wait()
        for n in range(3):
            world.send(session, {"to": f"{number}", "n": n})
        world.send(session, {"to": "all"})

    threads = [threading.Thread(target=act, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(world.done) == 16
    new = store.session("run")
    assert [world.send(new, {"to": "all"})[0] for _ in range(5)] == [True] * 4 + [False]


def test_threads_with_the_same_key_act_once(store: Store, world: World) -> None:
    session = store.session("run")
    barrier, refused = threading.Barrier(4), []

    def act() -> None:
        barrier.wait()
        try:
            world.send(session, key="1")
        except Conflict as error:
            refused.append(error)

    threads = [threading.Thread(target=act) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(world.done) == 1
    assert all("being performed" in str(error) for error in refused)


def test_coroutines_act_at_once(store: Store) -> None:
    session = store.session("run")
    inside: list[str] = []

    async def act(name: str) -> None:
        with session.effect("mail.send", intent={"to": name}) as effect:
            inside.append(name)
            await asyncio.sleep(0)
            effect.result = name

    async def main() -> None:
        await asyncio.gather(act("a"), act("b"))

    asyncio.run(main())
    assert [(e.intent["to"], e.status, e.result) for e in session.effects] == [
        ("a", "done", "a"),
        ("b", "done", "b"),
    ]


# --- restores and forks -----------------------------------------------------------------------


def test_an_effect_beyond_a_restore_is_recognised(store: Store, world: World) -> None:
    session = store.session("run")
    checkpoint = session.checkpoint()
    world.send(session)
    session.restore(checkpoint, accept_left_behind=True)
    [left] = session.effects
    assert left.status == "left_behind"
    told = session.state.get("outside")
    assert told[left.id]["name"] == "mail.send"
    assert told[left.id]["result"] == {"id": 1}
    # In the same process, and in one that starts again.
    assert world.send(session) == (True, {"id": 1})
    assert session.state.get("outside") == {}
    assert [e.status for e in session.effects] == ["done"]
    assert world.send(store.session("run")) == (True, {"id": 1})
    assert len(world.done) == 1


@pytest.mark.parametrize("where", ["rule", "call"])
def test_what_happens_with_a_repeat_is_configurable(store: Store, world: World, where: str) -> None:
    session = store.session("run")
    checkpoint = session.checkpoint()
    world.send(session, key="order-7")
    session.restore(checkpoint, accept_left_behind=True)
    if where == "rule":
        session.effects.rule("mail.*", repeat="ask")
    ask = {} if where == "rule" else {"repeat": "ask"}
    with pytest.raises(EffectRepeated):
        world.send(session, key="order-7", **ask)
    assert world.send(session, key="order-7", repeat="allow") == (False, {"id": 2})
    # What was allowed once is not done a third time.
    assert world.send(store.session("run"), key="order-7", repeat="allow") == (True, {"id": 2})
    assert len(session.effects.list()) == 2


def test_an_undo_of_the_restore_brings_it_back_onto_the_timeline(
    store: Store, world: World
) -> None:
    session = store.session("run")
    checkpoint = session.checkpoint()
    world.send(session)
    session.restore(checkpoint, accept_left_behind=True)
    session.undo()
    assert session.state.get("outside", {}) == {}
    assert [e.status for e in session.effects] == ["done"]
    session.redo(accept_left_behind=True)
    assert [e.status for e in session.effects] == ["left_behind"]


def test_a_checkpoint_between_keeps_what_was_outside(store: Store, world: World) -> None:
    session = store.session("run")
    first = session.checkpoint()
    world.send(session)
    session.restore(first, accept_left_behind=True)
    second = session.checkpoint()
    world.send(session)  # taken back onto the timeline
    session.restore(second, accept_left_behind=True)
    assert [e.status for e in session.effects] == ["left_behind"]


def test_a_fork_knows_what_was_done_before_and_beyond_its_point(store: Store, world: World) -> None:
    session = store.session("run")
    world.send(session, {"to": "before"})
    point = session.head
    world.send(session, {"to": "beyond"})
    fork = session.fork(point, "fork")
    assert [e.status for e in fork.effects] == ["done", "left_behind"]
    assert [told["intent"] for told in fork.state.get("outside").values()] == [{"to": "beyond"}]
    assert world.send(fork, {"to": "before"})[0]
    assert world.send(fork, {"to": "beyond"})[0]
    assert not world.send(fork, {"to": "new"})[0]
    # Each goes on alone.
    assert len(session.effects.list()) == 2
    assert store.verify().ok


def test_a_fork_of_a_fork_and_a_restore_before_the_fork(store: Store, world: World) -> None:
    session = store.session("run")
    start = session.checkpoint()
    world.send(session)
    fork = session.fork(session.head, "fork")
    fork.restore(start, accept_left_behind=True)
    assert [e.status for e in fork.effects] == ["left_behind"]
    second = fork.fork(fork.head, "second")
    assert world.send(second)[0]
    assert len(world.done) == 1


def test_a_fork_at_a_point_that_its_session_shares_with_its_parent(
    store: Store, world: World
) -> None:
    session = store.session("run")
    checkpoint = session.checkpoint()
    fork = session.fork(session.head, "fork")
    world.send(fork)
    # The point belongs to the parent, which knows nothing of what the fork did.
    second = fork.fork(checkpoint, "second")
    assert world.send(second)[0]
    assert session.fork(checkpoint, "third").effects.list() == []


def test_a_restore_of_named_parts_leaves_effects_alone(store: Store, world: World) -> None:
    session = store.session("run")
    session.state.set("memory/a", 1)
    checkpoint = session.checkpoint()
    session.state.set("memory/a", 2)
    world.send(session)
    session.restore(checkpoint, only=["memory"])
    assert [e.status for e in session.effects] == ["done"]


def test_a_local_effect_is_undone_by_a_restore(store: Store, world: World) -> None:
    session = store.session("run")
    checkpoint = session.checkpoint()
    world.send(session, kind="local")
    session.restore(checkpoint)
    assert session.effects.list() == []
    assert not world.send(store.session("run"), kind="local")[0]


def test_a_failed_operation_leaves_its_effects_behind(store: Store, world: World) -> None:
    session = store.session("run")

    def fails() -> None:
        session.state.set("memory/a", 1)
        world.send(session)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        session.operation("deploy")(fails)()
    assert session.state.get("memory") is None
    assert [e.status for e in session.effects] == ["left_behind"]
    assert world.send(session)[0]


# --- a team -----------------------------------------------------------------------------------


def test_an_effect_belongs_to_its_agent_and_task_and_a_takeover_keeps_it(
    store: Store, world: World
) -> None:
    store.session("run").tasks.add("Tell Ann", id="tell")
    with store.agent("a", session="run") as first:
        first.tasks.claim("tell")
        world.send(first)
    other = store.agent("b", session="run")
    [effect] = other.effects
    assert (effect.agent, effect.task) == ("a", "tell")
    other.tasks.release("tell")
    with other.tasks.working("tell"):
        assert world.send(other) == (True, {"id": 1})
    assert not world.send(other)[0]


# --- wrong uses -------------------------------------------------------------------------------


def test_unknown_ids_are_refused(store: Store, world: World) -> None:
    session = store.session("run")
    for id in ("", "nothing"):
        with pytest.raises(UnknownEffect):
            session.effects.get(id)
    with pytest.raises(UnknownEffect):
        session.effects.settle("nothing", "done")


def test_wrong_arguments_are_refused(store: Store) -> None:
    session = store.session("run")
    before = session.head
    wrong: list[Callable[[], object]] = [
        lambda: session.effect(""),
        lambda: session.effect("x\n"),
        lambda: session.effect("x", reversible=True),
        lambda: session.effect("x", kind="reversible"),
        lambda: session.effect("x", kind="other"),  # type: ignore[arg-type]
        lambda: session.effect("x", kind="local", undo=lambda effect: None),
        lambda: session.effect("x", undo="rm"),
        lambda: session.effect("x", key=""),
        lambda: session.effect("x", key=7),  # type: ignore[arg-type]
        lambda: session.effect("x", stakes="huge"),  # type: ignore[arg-type]
        lambda: session.effect("x", repeat="never"),  # type: ignore[arg-type]
        lambda: session.effects.settle("x", "maybe"),  # type: ignore[arg-type]
        lambda: session.effects.settle("x", "failed", result=1),
        lambda: session.effects.rule("x", approval="perhaps"),
        lambda: session.effects.rule("x", colour="red"),
        lambda: session.effects.rule("", approval="ask"),
        lambda: session.effects.rule("x", timeout="soon"),
        lambda: session.effects.on("x", undo=7),  # type: ignore[arg-type]
    ]
    for call in wrong:
        with pytest.raises(InvalidEffect):
            call()
    with pytest.raises(UnstorableValue):
        session.effect("x", intent=object())
    with session.batch(), pytest.raises(StateError), session.effect("x"):
        raise AssertionError
    for part in ("effects", "outside"):
        with pytest.raises(InvalidPath):
            session.state.set(part, {})
    assert session.head == before


RULES = """
[[effects.rules]]
name = "mail.*"
identity = ["to"]

[[effects.rules]]
name = "deploy"
{line}
"""


def test_the_store_configuration_has_rules(tmp_path: Path, world: World) -> None:
    from mulligan import open as open_mulligan

    with open_mulligan(tmp_path):
        pass
    config = tmp_path / ".mulligan" / "config.toml"
    config.write_text(RULES.format(line='approval = "ask"\ntimeout = "1h"'))
    with open_mulligan(tmp_path) as store:
        world.send(store.session("run"), {"to": "ann", "text": "a"})
        assert world.send(store.session("run"), {"to": "ann", "text": "b"})[0]
    for line, said in (
        ('approval = "perhaps"', "one of auto, ask, deny"),
        ('aproval = "ask"', "did you mean 'approval'"),
        ('timeout = "soon"', "not a duration"),
    ):
        config.write_text(RULES.format(line=line))
        with pytest.raises(InvalidConfig, match=rf"config\.toml:8: effects\.rules\.1.*{said}"):
            open_mulligan(tmp_path)
