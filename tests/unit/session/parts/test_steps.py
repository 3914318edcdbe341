"""A completed step returns its recorded result; a failed one is retried as its options say."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan import Session, Store
from mulligan.errors import (
    EffectInDoubt,
    InvalidEffect,
    StaleLease,
    StateError,
    StepChanged,
    UnstorableValue,
)
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store


class Counted:
    """A function that counts its calls, and fails as often as it is told."""

    def __init__(self, fails: int = 0, error: type[Exception] = OSError) -> None:
        self.calls: list[Any] = []
        self.fails = fails
        self.error = error

    def __call__(self, *args: Any) -> Any:
        self.calls.append(args)
        if len(self.calls) <= self.fails:
            raise self.error("not yet")
        return {"args": list(args), "call": len(self.calls)}


def again(store: Store, name: str = "run") -> Session:
    """A handle as a program that starts again opens it."""
    return store.session(name)


def test_a_completed_step_runs_once(store: Store) -> None:
    work = Counted()
    first = store.session("run").step("fetch", work, "a", 1)
    assert again(store).step("fetch", work, "a", 1) == first == {"args": ["a", 1], "call": 1}
    assert work.calls == [("a", 1)]


def test_steps_are_known_by_name_and_occurrence(store: Store) -> None:
    session = store.session("run")
    results = [session.step("fetch", Counted(), n) for n in range(3)]
    new = again(store)
    # A new version of the program has another step in between; the others keep their results.
    assert new.step("fetch", Counted(fails=9), 0) == results[0]
    assert new.step("inserted", Counted(), 7)["args"] == [7]
    assert [new.step("fetch", Counted(fails=9), n) for n in (1, 2)] == results[1:]


@pytest.mark.parametrize("changed", ["stop", "reuse", "rerun"])
def test_other_arguments_are_reported_with_a_choice(store: Store, changed: Any) -> None:
    store.session("run").step("fetch", Counted(), "a", 1)
    work = Counted()
    step = again(store).durable(name="fetch", changed=changed)(lambda *args: work(*args))
    if changed == "stop":
        with pytest.raises(StepChanged, match=r"'fetch'.*argument 1"):
            step("a", 2)
    else:
        expected = {"reuse": [["a", 1], 0], "rerun": [["a", 2], 1]}[changed]
        assert [step("a", 2)["args"], len(work.calls)] == expected


def test_arguments_that_cannot_be_stored_are_not_compared(store: Store) -> None:
    store.session("run").step("fetch", lambda _: 1, object())
    assert again(store).step("fetch", lambda _: 2, object()) == 1


def test_a_failed_step_is_retried_with_backoff(tmp_path: Path) -> None:
    clock = FakeClock()
    session = open_store(tmp_path, clock=clock).session("run")
    work = Counted(fails=3)
    start = clock.monotonic()
    assert session.durable(retries=3, delay=2, backoff=3)(work_named(work))()["call"] == 4
    assert clock.monotonic() - start == 2 + 6 + 18
    failures = [event for event in session.events() if event.kind == "step.failed"]
    assert [event.payload["error"] for event in failures] == ["OSError: not yet"] * 3


def work_named(work: Counted) -> Callable[..., Any]:
    def named(*args: Any) -> Any:
        return work(*args)

    return named


def test_only_the_named_errors_are_retried(tmp_path: Path) -> None:
    session = open_store(tmp_path, clock=FakeClock()).session("run")
    work = Counted(fails=2, error=ValueError)
    with pytest.raises(ValueError, match="not yet"):
        session.durable(retries=5, errors=(OSError,))(work_named(work))()
    assert len(work.calls) == 1


def test_a_retry_by_the_program_is_the_same_occurrence(store: Store) -> None:
    session, work = store.session("run"), Counted(fails=1)
    with pytest.raises(OSError, match="not yet"):
        session.step("fetch", work)
    session.step("fetch", work)
    assert again(store).step("fetch", Counted(fails=9))["call"] == 2


def test_a_step_after_the_point_of_a_restore_runs_again(store: Store) -> None:
    session = store.session("run")
    session.step("one", Counted())
    checkpoint = session.checkpoint()
    session.step("two", Counted())
    session.restore(checkpoint)
    one, two = Counted(), Counted()
    new = again(store)
    new.step("one", one)
    new.step("two", two)
    assert (len(one.calls), len(two.calls)) == (0, 1)


def test_a_fork_has_the_steps_up_to_its_point(store: Store) -> None:
    session = store.session("run")
    first = session.step("one", Counted())
    fork = session.fork(session.head)
    session.step("two", Counted())
    assert fork.step("one", Counted(fails=9)) == first
    assert fork.step("two", Counted())["call"] == 1


def test_another_agent_that_takes_a_task_over_finds_its_steps(store: Store) -> None:
    store.session("run").tasks.add("Build", id="build")
    with store.agent("a", session="run") as first:
        first.tasks.claim("build")
        first.step("compile", Counted(), "x")
    other = store.agent("b", session="run")
    other.tasks.release("build")
    with other.tasks.working("build"):
        assert other.step("compile", Counted(fails=9), "x")["call"] == 1
    # Outside of the task it is another step.
    assert other.step("compile", Counted(), "x")["call"] == 1


def test_a_task_that_is_claimed_again_is_done_from_its_start(store: Store) -> None:
    session = store.session("run")
    session.tasks.add("Build", id="build")
    work = Counted()
    with pytest.raises(ZeroDivisionError), session.tasks.working("build"):
        session.step("compile", work)["call"] // 0
    session.tasks.retry("build")
    with session.tasks.working("build"):
        session.step("compile", work)
    assert len(work.calls) == 1


def test_threads_run_their_steps_at_once(store: Store) -> None:
    session = store.session("run")
    results: dict[int, Any] = {}
    barrier = threading.Barrier(4)

    def run(number: int) -> None:
        barrier.wait()
        results[number] = [session.step(f"t{number}", lambda n=n: n) for n in range(5)]

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: [0, 1, 2, 3, 4] for n in range(4)}
    new = again(store)
    assert [new.step("t3", Counted(fails=9)) for n in range(5)] == [0, 1, 2, 3, 4]


def test_coroutines_run_their_steps_at_once(store: Store) -> None:
    session = store.session("run")
    order: list[str] = []

    async def slow(name: str) -> str:
        order.append(f"{name} starts")
        await asyncio.sleep(0)
        order.append(f"{name} ends")
        return name

    async def both(session: Session) -> list[str]:
        return await asyncio.gather(
            session.step("a", slow, "a"), session.durable(name="b")(slow)("b")
        )

    assert asyncio.run(both(session)) == ["a", "b"]
    assert order[:2] == ["a starts", "b starts"]
    assert asyncio.run(both(again(store))) == ["a", "b"]
    assert len(order) == 4


def test_a_coroutine_step_is_retried(tmp_path: Path) -> None:
    session = open_store(tmp_path).session("run")
    work = Counted(fails=2)

    async def fetch() -> Any:
        return work()

    assert asyncio.run(session.durable(retries=2, delay=0)(fetch)())["call"] == 3


def test_an_at_most_once_step_is_in_doubt_after_a_crash(store: Store) -> None:
    session, work = store.session("run"), Counted()

    class Killed(BaseException):
        pass

    def dies() -> None:
        work()
        raise Killed

    with pytest.raises(Killed):
        session.durable(at_most_once=True, name="pay")(dies)()
    new = again(store)
    with pytest.raises(EffectInDoubt):
        new.durable(at_most_once=True, name="pay")(dies)()
    [effect] = new.effects.list(in_doubt=True)
    assert (effect.name, effect.kind, len(work.calls)) == ("pay", "local", 1)
    new.effects.settle(effect.id, "done", result=5)
    assert new.durable(at_most_once=True, name="pay")(dies)() == 5
    assert again(store).step("pay", Counted(fails=9)) == 5


def test_the_result_and_the_outcome_of_its_effect_are_one_transaction(store: Store) -> None:
    session = store.session("run")
    sent: list[str] = []

    def send(to: str, text: str) -> dict[str, Any]:
        sent.append(to)
        return {"id": len(sent)}

    step = session.durable(effect="mail.send", key=lambda to, text: to)(send)
    assert step("ann", "hello") == {"id": 1}
    kinds = [event.kind for event in session.events()]
    assert kinds[-3:] == ["effect.intended", "effect.done", "step.completed"]
    [effect] = session.effects
    assert (effect.intent, effect.key) == ({"to": "ann", "text": "hello"}, "ann")
    # The state went back; the world did not.
    session.restore(1, accept_left_behind=True)
    new = again(store)
    assert new.durable(effect="mail.send", key=lambda to, text: to)(send)("ann", "hi") == {"id": 1}
    assert sent == ["ann"]
    assert new.state.get("outside") == {}


def test_a_result_that_cannot_be_stored_is_an_error(store: Store) -> None:
    with pytest.raises(UnstorableValue, match="'make'") as refused:
        store.session("run").step("make", lambda: object())
    assert "not recorded" in refused.value.hint


def test_a_large_result_is_an_object_of_its_own(store: Store) -> None:
    session = store.session("run")
    session.step("read", lambda: "x" * 100_000)
    with session.internal.engine.read() as view:
        record = view.find("run")
        assert record is not None
        [event] = view.events(record.number, session.head.seq, session.head.seq)
    assert len(repr(event.payload["changes"])) < 1_000
    assert again(store).step("read", lambda: "") == "x" * 100_000


def test_a_step_of_a_replaced_agent_is_refused(store: Store) -> None:
    old = store.agent("coder", session="run")
    store.agent("coder", session="run", steal=True)
    with pytest.raises(StaleLease):
        old.step("one", lambda: 1)


def test_wrong_uses_are_refused(store: Store) -> None:
    session = store.session("run")

    def generator() -> Any:
        yield 1

    wrong: list[Callable[[], object]] = [
        lambda: session.step("", lambda: 1),
        lambda: session.step("x" * 201, lambda: 1),
        lambda: session.step("one", None),  # type: ignore[arg-type]
        lambda: session.durable(generator),
        lambda: session.durable(retries=-1),
        lambda: session.durable(delay=float("nan")),
        lambda: session.durable(changed="maybe"),  # type: ignore[arg-type]
        lambda: session.durable(errors=("OSError",)),  # type: ignore[arg-type]
    ]
    for call in wrong:
        with pytest.raises(InvalidEffect):
            call()
    with session.batch(), pytest.raises(StateError):
        session.step("one", lambda: 1)
    with pytest.raises(mulligan.errors.InvalidPath):
        session.state.set("steps/x", 1)
