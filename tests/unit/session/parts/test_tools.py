"""A tool call is recorded before it starts and after it returned; without a return, in doubt."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mulligan import Session, Store
from mulligan.errors import (
    ApprovalPending,
    Conflict,
    EffectInDoubt,
    InvalidEffect,
    InvalidPath,
    UnknownEffect,
)
from mulligan.session.parts.tools import is_running

PYTHON = [sys.executable, "-c"]


def test_a_call_is_durable_while_it_runs_and_after_it(store: Store, session: Session) -> None:
    other = store.session("run")
    with session.tools.call("search", {"q": "cats"}) as call:
        [inside] = other.tools
        assert (inside.status, inside.args) == ("called", {"q": "cats"})
        call.returned(["a", "b"])
    [after] = other.tools
    assert (after.id, after.name, after.status, after.result) == (
        call.id,
        "search",
        "returned",
        ["a", "b"],
    )
    assert (after.agent, after.task, after.error) == ("main", None, None)
    kinds = [event.kind for event in session.events()]
    assert kinds[-2:] == ["tool.called", "tool.returned"]


def test_a_call_that_raises_has_failed(session: Session) -> None:
    with pytest.raises(OSError, match="no net"), session.tools.call("search"):
        raise OSError("no net")
    [call] = session.tools.list(failed=True)
    assert (call.status, call.error) == ("failed", "OSError: no net")


def test_a_call_without_a_return_is_in_doubt(store: Store, session: Session) -> None:
    with pytest.raises(EffectInDoubt), session.tools.call("pay"):
        raise EffectInDoubt("the line went dead")
    pid = os.fork()
    if pid == 0:
        store.session("run").tools.call("deploy").__enter__()
        os._exit(0)
    os.waitpid(pid, 0)
    assert [(c.name, c.status) for c in session.tools.list(in_doubt=True)] == [
        ("pay", "in_doubt"),
        ("deploy", "in_doubt"),
    ]
    assert session.tools.list(failed=True) == []
    # Learned afterwards: it had returned.
    doubtful = session.tools.list(name="dep*")[0]
    session.tools.record("deploy", id=doubtful.id, result="ok")
    assert session.tools.get(doubtful.id).status == "returned"
    assert len(session.tools.list(in_doubt=True)) == 1


def test_a_call_in_doubt_is_settled_once(store: Store, session: Session) -> None:
    for id in ("toolu_1a", "toolu_1b", "toolu_2"):
        with pytest.raises(EffectInDoubt), session.tools.call("pay", {"eur": 7}, id=id):
            raise EffectInDoubt("the line went dead")
    tools = session.tools
    done = tools.settle("toolu_1a", "done", result={"paid": 7}, note="on the statement", by="ann")
    assert (done.status, done.result, done.error, done.args) == (
        "returned",
        {"paid": 7},
        None,
        {"eur": 7},
    )
    assert session.state.get("tools/toolu_1a/by") == "ann"
    failed = tools.settle("toolu_2", "failed", note="not on the statement")
    assert (failed.status, failed.error) == ("failed", "not on the statement")
    assert tools.settle("toolu_1b", "failed").error == "did not happen"
    assert tools.list(in_doubt=True) == []
    with pytest.raises(Conflict, match="is returned, not in doubt"):
        tools.settle("toolu_1a", "failed")
    with pytest.raises(UnknownEffect, match="2 tool calls have"):
        tools.settle("toolu_1", "done")
    with pytest.raises(UnknownEffect, match="No tool call has"):
        tools.settle("", "done")
    with pytest.raises(InvalidEffect, match="has no result"):
        tools.settle("toolu_1a", "failed", result=1)
    with pytest.raises(InvalidEffect, match="not 'maybe'"):
        tools.settle("toolu_1a", "maybe")  # type: ignore[arg-type]
    with (
        session.tools.call("pay", id="now"),
        pytest.raises(Conflict, match="is under way, not in doubt"),
    ):
        store.session("run").tools.settle("now", "done")


def test_a_decorator_records_every_call(session: Session) -> None:
    @session.tools.tool
    def add(a: int, b: int = 2) -> int:
        return a + b

    @session.tools.tool(name="slow")
    async def later(value: Any) -> Any:
        await asyncio.sleep(0)
        return value

    class Thing:
        def __repr__(self) -> str:
            return "<thing>"

    async def main() -> None:
        await asyncio.gather(later(1), later(Thing()))

    assert add(1) == 3
    asyncio.run(main())
    assert [(c.name, c.args, c.result) for c in session.tools] == [
        ("add", {"a": 1}, 3),
        ("slow", {"value": 1}, 1),
        ("slow", {"value": "<thing>"}, "<thing>"),
    ]


def test_calls_that_ended_are_recorded_afterwards(session: Session) -> None:
    made = session.tools.record("search", {"q": 1}, result=[1], id="toolu_1")
    assert (made.id, made.status) == ("toolu_1", "returned")
    assert session.tools.record("search", error="timeout").status == "failed"
    with pytest.raises(Conflict, match="returned already"):
        session.tools.record("search", id="toolu_1")
    with pytest.raises(Conflict), session.tools.call("search", id="toolu_1"):
        raise AssertionError


def test_checkpoints_are_taken_by_policy(session: Session, work: Path) -> None:
    session.tools.take_checkpoints("edit*", "both")
    (work / "a").write_text("1")
    with session.tools.call("edit_file"):
        (work / "a").write_text("2")
        (work / "b").write_text("2")
    with session.tools.call("search"):
        pass
    edit, search = session.tools
    assert [c.id for c in session.checkpoints()] == [edit.before, edit.after]
    assert edit.files == ["a", "b"]
    assert (search.before, search.files) == (None, None)


def test_a_restore_takes_calls_back(session: Session) -> None:
    session.tools.record("one")
    checkpoint = session.checkpoint()
    session.tools.record("two")
    session.restore(checkpoint)
    assert [call.name for call in session.tools] == ["one"]
    session.tools.record("three")
    assert [call.name for call in session.tools] == ["one", "three"]


def test_a_large_output_is_an_object_and_is_not_read_by_a_look_for_doubt(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        session.tools.record("read", result=f"{number}" * 200_000)
    read: list[int] = []
    engine = session.internal.engine
    real = type(engine).load

    def load(self: Any, digest: Any) -> bytes:
        data = real(self, digest)
        read.append(len(data))
        return data

    monkeypatch.setattr(type(engine), "load", load)
    fresh = Session(engine, session._record, "main", session._environment_reader)
    assert fresh.tools.list(in_doubt=True) == []
    assert max(read, default=0) < 100_000
    assert [len(call.result) for call in fresh.tools] == [200_000] * 3


def test_a_process_that_a_call_started_is_known(session: Session) -> None:
    child = subprocess.Popen([*PYTHON, "input()"], stdin=subprocess.PIPE)
    with session.tools.call("serve") as call:
        call.started(child.pid)
    assert is_running(session.tools.get(call.id))
    child.communicate(b"\n")
    assert not is_running(session.tools.get(call.id))


def test_a_command_is_recorded_with_its_output_and_files(session: Session, work: Path) -> None:
    (work / "a").write_text("1")
    shown: list[tuple[int, bytes]] = []
    script = "import sys; print('out'); print('err', file=sys.stderr); open('b', 'w').write('x')"
    call = session.tools.run(
        [*PYTHON, script], show=lambda *said: shown.append(said), directory=work
    )
    assert call.status == "returned"
    assert call.args == {"command": [*PYTHON, script]}
    assert call.result == {"exit": 0, "stdout": "out\n", "stderr": "err\n", "is_cut": False}
    assert call.files == ["b"]
    for number, text in ((1, b"out\n"), (2, b"err\n")):
        assert b"".join(data for output, data in shown if output == number) == text
    assert [c.note for c in session.checkpoints()] == ["before shell", "after shell"]
    failed = session.tools.run([*PYTHON, "raise SystemExit(3)"])
    assert (failed.status, failed.error, failed.result["exit"]) == ("failed", "exit code 3", 3)
    with pytest.raises(FileNotFoundError):
        session.tools.run(["/nonexistent/command"])
    assert session.tools.list()[-1].status == "failed"


def test_a_command_that_is_an_effect_runs_once(store: Store, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    command = [*PYTHON, f"open({str(seen)!r}, 'a').write('x'); print('done')"]
    first = store.session("run").tools.run(command, effect="deploy")
    second = store.session("run").tools.run(command, effect="deploy")
    assert seen.read_text() == "x"
    assert second == first
    assert second.result["stdout"] == "done\n"
    third = store.session("run").tools.run(command, effect="deploy", key="again")
    assert (seen.read_text(), third.status) == ("xx", "returned")


def test_a_failed_command_is_a_failed_effect_and_a_killed_one_in_doubt(store: Store) -> None:
    session = store.session("run")
    session.tools.run([*PYTHON, "raise SystemExit(3)"], effect="a")
    session.tools.run([*PYTHON, "import os; os.kill(os.getpid(), 9)"], effect="b")
    assert [(e.name, e.status) for e in session.effects] == [("a", "failed"), ("b", "in_doubt")]
    session.effects.rule("c", approval="ask")
    with pytest.raises(ApprovalPending):
        session.tools.run([*PYTHON, "print(1)"], effect="c")


def test_what_programs_of_earlier_versions_wrote_is_read(session: Session) -> None:
    session.internal.state.set(
        "tools/calls", {"a": {"tool": "pay", "status": "called"}, "b": "odd", "c": {"status": 7}}
    )
    [call] = session.tools.list(in_doubt=True)
    assert (call.id, call.name) == ("a", "pay")
    settled = session.tools.settle("a", "done", result="paid")
    assert (settled.name, settled.status, settled.result) == ("pay", "returned", "paid")
    assert session.tools.list() == [settled]


def test_wrong_uses_are_refused(session: Session) -> None:
    wrong: list[Callable[[], object]] = [
        lambda: session.tools.call(""),
        lambda: session.tools.call("x", id=""),
        lambda: session.tools.call("x", checkpoints="often"),  # type: ignore[arg-type]
        lambda: session.tools.take_checkpoints("x", "often"),  # type: ignore[arg-type]
        lambda: session.tools.record("x", error=7),  # type: ignore[arg-type]
        lambda: session.tools.run([]),
        lambda: session.tools.run("ls"),
    ]
    for call in wrong:
        with pytest.raises(InvalidEffect):
            call()
    with pytest.raises(UnknownEffect):
        session.tools.get("nothing")
    with pytest.raises(InvalidPath):
        session.state.set("tools/calls/x", {})
