"""The names and signatures that others build on do not change by accident."""

from __future__ import annotations

import inspect
import re
import traceback
import types
import typing
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

import mulligan
from mulligan import (
    Agent,
    Approvals,
    Batch,
    Checkpoints,
    Cycle,
    Effects,
    Files,
    Mailbox,
    Operation,
    Session,
    State,
    Store,
    Tasks,
    Tools,
    errors,
)
from mulligan.errors import UnknownSession

NAMES = [
    "MISSING",
    "ActiveCall",
    "ActiveEffect",
    "Agent",
    "AgentState",
    "Approvals",
    "Batch",
    "CallStatus",
    "Changing",
    "Checkpoint",
    "CheckpointKind",
    "Checkpoints",
    "Cost",
    "Coverage",
    "Cycle",
    "Diff",
    "Difference",
    "Digest",
    "Effect",
    "EffectKind",
    "EffectPlan",
    "EffectRule",
    "EffectStatus",
    "Effects",
    "Environment",
    "Event",
    "FileChange",
    "Files",
    "Finding",
    "Holder",
    "Lease",
    "LeftOut",
    "Location",
    "LockOwner",
    "Mailbox",
    "Mark",
    "Message",
    "MulliganError",
    "OpenFile",
    "Operation",
    "PathChange",
    "PathLike",
    "PendingRestore",
    "PinnedBy",
    "Plan",
    "Point",
    "PointLike",
    "Priority",
    "Problem",
    "Question",
    "Repeat",
    "Report",
    "RestoreMode",
    "RestoreOrigin",
    "Restored",
    "Rollback",
    "Session",
    "Stakes",
    "State",
    "StateView",
    "Store",
    "Task",
    "TaskStatus",
    "Tasks",
    "ToolCall",
    "Tools",
    "ValueChange",
    "Verdict",
    "attach",
    "errors",
    "open",
    "session_name",
]

MEMBERS = [
    "actor",
    "agent",
    "approvals",
    "batch",
    "checkpoint",
    "checkpoints",
    "close",
    "created",
    "diff",
    "durable",
    "effect",
    "effects",
    "events",
    "files",
    "find",
    "fork",
    "head",
    "internal",
    "loop",
    "mailbox",
    "name",
    "operation",
    "parent",
    "point",
    "redo",
    "restore",
    "state",
    "step",
    "tasks",
    "tools",
    "undo",
    "updated",
    "walk",
]
"""What a program can do with a session; a new one is a decision, not an accident."""

MAX_MEMBERS = 33
"""A session that can do more is hard to take in; give the next calls to one of its parts."""

PUBLIC_MODULES = [
    "mulligan",
    "mulligan.aio",
    "mulligan.errors",
    "mulligan.recovery",
    "mulligan.supervisor",
    "mulligan.upkeep",
]

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("guide-*.md"))]

SIGNATURES: list[tuple[Callable[..., object], dict[str, object]]] = [
    (mulligan.open, {"path": ..., "create": True}),
    (Store.session, {"self": ..., "name": ..., "create": True}),
    (Store.agent, {"self": ..., "name": ...}),
    (Store.sessions, {"self": ...}),
    (Store.verify, {"self": ..., "full": True}),
    (Store.close, {"self": ...}),
    (State.get, {"self": ..., "path": "", "default": None}),
    (State.set, {"self": ..., "path": ..., "value": ...}),
    (State.append, {"self": ..., "path": ..., "value": ...}),
    (State.extend, {"self": ..., "path": ..., "values": ...}),
    (State.put, {"self": ..., "path": ..., "value": ...}),
    (State.delete, {"self": ..., "path": ...}),
    (Session.batch, {"self": ...}),
    (Session.checkpoint, {"self": ..., "kind": "manual", "note": None, "label": None}),
    (Checkpoints.__call__, {"self": ...}),
    (State.at, {"self": ..., "point": ...}),
    (Session.restore, {"self": ..., "point": ..., "only": None}),
    (Session.undo, {"self": ...}),
    (Session.redo, {"self": ...}),
    (Session.fork, {"self": ..., "point": ..., "name": None}),
    (Session.events, {"self": ..., "since": None, "until": None, "follow": False}),
]


def test_the_public_names_are_these() -> None:
    assert mulligan.__all__ == NAMES
    assert [name for name in NAMES if not hasattr(mulligan, name)] == []


@pytest.mark.parametrize(
    ("function", "fixed"), SIGNATURES, ids=lambda x: getattr(x, "__name__", "")
)
def test_the_fixed_signatures_hold(
    function: Callable[..., object], fixed: dict[str, object]
) -> None:
    found = inspect.signature(function).parameters
    assert list(found)[: len(fixed)] == list(fixed)
    for name, default in fixed.items():
        expected = inspect.Parameter.empty if default is ... else default
        assert found[name].default == expected
        assert found[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    for name in list(found)[len(fixed) :]:
        if (function, name) == (Store.agent, "session"):
            continue
        assert found[name].default is not inspect.Parameter.empty, f"{name} must be optional"


def test_every_public_thing_says_what_it_is() -> None:
    named = [getattr(mulligan, name) for name in NAMES if name != "MISSING"]
    documented = [thing for thing in named if inspect.isclass(thing) or inspect.isfunction(thing)]
    assert [thing for thing in documented if not inspect.getdoc(thing)] == []
    for owner in (
        Store,
        Session,
        State,
        Tasks,
        Mailbox,
        Agent,
        Files,
        Checkpoints,
        Operation,
        Cycle,
        Effects,
        Approvals,
        Tools,
        Batch,
    ):
        for name, member in inspect.getmembers(owner):
            if not name.startswith("_") and (callable(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{owner.__name__}.{name}"


def public_members(owner: type) -> Iterator[tuple[str, Callable[..., object]]]:
    for name, member in vars(owner).items():
        function = member.fget if isinstance(member, property) else member
        if not name.startswith("_") and name != "internal" and inspect.isfunction(function):
            yield name, function


def own_types(hint: object) -> Iterator[type]:
    """Yield the classes of Mulligan that a type is made of."""
    if isinstance(hint, type) and hint.__module__.startswith("mulligan"):
        yield hint
    for part in typing.get_args(hint):
        yield from own_types(part)


def returned() -> Iterator[tuple[str, type]]:
    names = {**vars(mulligan), **{name: getattr(mulligan, name) for name in NAMES}}
    for owner in [thing for thing in map(names.get, NAMES) if inspect.isclass(thing)]:
        for name, function in public_members(owner):
            hints = typing.get_type_hints(function, localns=names)
            for found in own_types(hints.get("return")):
                yield f"{owner.__name__}.{name}", found
        if owner.__module__.startswith("mulligan.model.") and not isinstance(
            owner, types.UnionType
        ):
            for name, hint in typing.get_type_hints(owner, localns=names).items():
                for found in own_types(hint):
                    yield f"{owner.__name__}.{name}", found


def test_what_a_public_call_returns_can_be_imported() -> None:
    public = [getattr(mulligan, name) for name in NAMES]
    found = list(returned())
    assert len(found) > 50
    assert [(where, thing) for where, thing in found if thing not in public] == []


def test_a_session_has_these_members() -> None:
    assert [name for name in dir(Session) if not name.startswith("_")] == MEMBERS
    assert len(MEMBERS) <= MAX_MEMBERS


def test_a_session_is_closed_at_the_end_of_its_block() -> None:
    store = mulligan.open("memory:")
    with store.agent("coder", session="run") as session:
        assert session.agent.lease is not None
    assert session.agent.lease is None
    with store.agent("coder", session="run"):
        pass


def test_test_hooks_are_no_parameters_of_open() -> None:
    assert not {"clock", "failpoint"} & inspect.signature(mulligan.open).parameters.keys()


def test_the_help_of_a_session_names_its_parts() -> None:
    said = inspect.getdoc(Session)
    assert said is not None
    for part in ("state", "checkpoints", "tasks", "mailbox", "agent", "files"):
        assert f"``{part}``" in said
        assert inspect.getdoc(getattr(Session, part))


def test_a_traceback_shows_the_hint() -> None:
    with pytest.raises(UnknownSession) as caught:
        mulligan.open("memory:").session("nothing", create=False)
    assert caught.value.hint
    assert caught.value.hint in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_use_only_public_names(page: Path) -> None:
    code = "\n".join(re.findall(r"```python[^\n]*\n(.*?)```", page.read_text(), re.S))
    imported = re.findall(
        r"^\s*(?:from|import)\s+(mulligan[\w.]*)(?:\s+import\s+(.+))?", code, re.M
    )
    for module, names in imported:
        if re.fullmatch(r"mulligan\.integrations\.\w+", module):
            # It needs its framework; `tests/frameworks/test_docs.py` runs these examples.
            assert not re.search(r"\b_", names), page.name
            continue
        assert module in PUBLIC_MODULES, page.name
        public = [*(getattr(import_module(module), "__all__", None) or vars(errors)), "aio"]
        assert [name for name in re.split(r",\s*", names) if name and name not in public] == []
    assert ".internal" not in code
