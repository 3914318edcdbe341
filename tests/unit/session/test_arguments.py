"""Arguments that are wrong are refused with a sentence, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan import Session
from mulligan.errors import (
    InvalidMark,
    InvalidName,
    InvalidPath,
    InvalidTask,
    MulliganError,
    UnknownPoint,
    UnsafeWorkspace,
    UnstorableValue,
)

NAN = float("nan")


@pytest.fixture
def session(tmp_path: Path) -> Session:
    work = tmp_path / "work"
    work.mkdir()
    (work / "m").write_text("one")
    session = mulligan.open(tmp_path / "store").session("run", workspace=work)
    session.state.set("memory", {"a": 1})
    session.tasks.plan(["build"])
    session.checkpoint(label="here")
    return session


Call = Callable[[Session], object]

WRONG: list[tuple[type[MulliganError], Call]] = [
    (InvalidPath, lambda s: s.checkpoints(limit=-1)),
    (InvalidPath, lambda s: s.checkpoints(limit="3")),  # type: ignore[arg-type]
    (UnsafeWorkspace, lambda s: mulligan.open("")),
    (UnsafeWorkspace, lambda s: mulligan.open("memory:").session("run", workspace="/no/such")),
    (UnsafeWorkspace, lambda s: mulligan.open("memory:").agent("a", session="b", workspace="/no")),
    (UnsafeWorkspace, lambda s: mulligan.open("a\0b")),
    (UnsafeWorkspace, lambda s: mulligan.open(None)),  # type: ignore[arg-type]
    (InvalidName, lambda s: mulligan.session_name(7)),  # type: ignore[arg-type]
    # A text where a list is expected would be taken letter by letter, a dict key by key.
    (InvalidTask, lambda s: s.tasks.plan("deploy")),
    (InvalidTask, lambda s: s.tasks.plan({"title": "deploy"})),
    (InvalidTask, lambda s: s.tasks.plan(b"deploy")),
    (InvalidTask, lambda s: s.tasks.plan(None)),
    (InvalidTask, lambda s: s.tasks.plan([("a", "b")])),
    (InvalidTask, lambda s: s.tasks.plan([{"title": "x", "after": "build"}])),
    (InvalidTask, lambda s: s.tasks.add("x", after="build")),
    (InvalidTask, lambda s: s.tasks.add("x", after=[1])),
    (InvalidTask, lambda s: s.tasks.add("x", parent=1)),
    (UnstorableValue, lambda s: s.state.extend("list", "text")),
    (UnstorableValue, lambda s: s.state.extend("list", {"a": 1})),
    (UnstorableValue, lambda s: s.state.extend("list", None)),
    *(
        (InvalidPath, call)
        for only in (
            "memory",
            b"memory",
            Path("m"),
            {"memory": 1},
            5,
            [5],
            [None],
            [b"m"],
            [""],
        )
        for call in (
            lambda s, only=only: s.restore("here", only),
            lambda s, only=only: s.restore("here", only=only),
            lambda s, only=only: s.files.plan("here", only),
            lambda s, only=only: s.diff("here", only=only),
            lambda s, only=only: s.files.copy("here", "/tmp/never made", only),
            lambda s, only=only: s.internal.plan_copy("here", only),
        )
    ),
    # What names no point.
    *(
        (UnknownPoint, call)
        for point in (None, 1.5, True, b"here", ["here"], object())
        for call in (
            lambda s, point=point: s.restore(point),
            lambda s, point=point: s.fork(point),
            lambda s, point=point: s.state.at(point),
            lambda s, point=point: s.diff(point),
            lambda s, point=point: s.checkpoints.mark(point, "good"),
            lambda s, point=point: s.checkpoints.at(point),
            lambda s, point=point: s.files.copy(point, "/tmp/never made"),
        )
    ),
    # Times that are none.
    *(
        (InvalidTask, call)
        for wrong in (0, -1, NAN, "5", True)
        for call in (
            lambda s, wrong=wrong: s.agent.expect(wrong),
            lambda s, wrong=wrong: s.agent.step("call", wrong).__enter__(),
            lambda s, wrong=wrong: s.internal.take(wrong),
        )
    ),
    (InvalidTask, lambda s: s.agent.step("call", None).__enter__()),
    *(
        (InvalidTask, call)
        for wrong in (-1, NAN, "5", True)
        for call in (
            lambda s, wrong=wrong: s.loop(checkpoint_interval=wrong),
            lambda s, wrong=wrong: s.loop(refresh_after=wrong),
            lambda s, wrong=wrong: s.mailbox.receive(timeout=wrong),
        )
    ),
    (InvalidTask, lambda s: s.loop(refresh_after=None)),
    (InvalidTask, lambda s: s.mailbox.receive(timeout=None)),
    # What could not be read back: it would break every later reader.
    (UnstorableValue, lambda s: s.checkpoint(note=5)),
    (InvalidMark, lambda s: s.checkpoints.mark("here", "good", 5)),
    (InvalidMark, lambda s: s.checkpoints.mark("here", None)),
    (InvalidTask, lambda s: s.tasks.fail("build", 5)),
    (InvalidTask, lambda s: s.tasks.fail("build", None)),
    (InvalidTask, lambda s: s.tasks.skip("build", 5)),
    (InvalidTask, lambda s: s.tasks.release("build", 5)),
    (InvalidTask, lambda s: s.tasks.update("build", note=5)),
    (InvalidTask, lambda s: s.tasks.update("build", progress="half")),
    (InvalidTask, lambda s: s.tasks.update("build", progress=True)),
    (InvalidTask, lambda s: s.mailbox.send("ada", {"body": 1})),
    (InvalidTask, lambda s: s.mailbox.ack(None)),
    (InvalidName, lambda s: s.mailbox.waiting("")),
    (InvalidName, lambda s: s.mailbox.processed("")),
    # Paths that are none.
    (InvalidPath, lambda s: s.state.get(None)),
    (InvalidPath, lambda s: s.state.set(b"ab", 1)),
    (InvalidPath, lambda s: s.state.set(5, 1)),
    (UnsafeWorkspace, lambda s: s.fork("here", workspace="")),
    (UnsafeWorkspace, lambda s: s.files.copy("here", "")),
    (UnsafeWorkspace, lambda s: s.files.copy("here", None)),
]


@pytest.mark.parametrize(("error", "call"), WRONG)
def test_a_wrong_argument_is_refused_and_changes_nothing(
    session: Session, error: type[MulliganError], call: Call
):
    before = session.head
    with pytest.raises(error) as refused:
        call(session)
    assert str(refused.value).endswith(".")
    assert session.head == before
    assert [task.id for task in session.tasks] == ["build"]
    assert session.checkpoints.marks() == {}


@pytest.mark.parametrize(
    "given",
    [{"ttl": 0}, {"ttl": -5}, {"ttl": "30"}, {"workspace": ""}, {"name": ""}, {"session": ""}],
)
def test_a_session_is_not_made_with_wrong_arguments(tmp_path: Path, given: dict[str, Any]):
    with mulligan.open(tmp_path) as store:
        with pytest.raises(MulliganError):
            store.agent(**{"name": "coder", "session": "new", **given})
        assert store.sessions() == []


def test_what_was_meant_works(session: Session):
    """Beside each refusal: the way that its sentence names."""
    session.tasks.plan(title for title in ["one", "two"])
    session.tasks.add("three", after=("one", "two"))
    session.state.extend("list", (n for n in range(3)))
    session.state.extend("list", [["text"], {"a": 1}])
    session.restore("here", only=["memory"])
    session.restore("here", only=("memory", ("memory", "a")))
    session.agent.expect(None)
    session.agent.expect(0.5)
    assert session.mailbox.receive(timeout=0) is None
    assert session.state.get("list") == [0, 1, 2, ["text"], {"a": 1}]
    assert len(session.tasks) == 4


@pytest.mark.parametrize("path", [None, "", b"bytes", 5])
def test_what_names_no_directory_is_refused(path: Any) -> None:
    with pytest.raises(UnsafeWorkspace, match="The path of a store"):
        mulligan.open(path)
