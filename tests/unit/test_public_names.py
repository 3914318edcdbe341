"""The names and signatures that others build on do not change by accident."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

import mulligan
from mulligan import Session, Store

NAMES = [
    "MISSING",
    "Checkpoint",
    "Cost",
    "Diff",
    "Difference",
    "Digest",
    "Environment",
    "Event",
    "Lease",
    "Message",
    "MulliganError",
    "Point",
    "Problem",
    "Report",
    "Restored",
    "Session",
    "Store",
    "Task",
    "attach",
    "errors",
    "open",
]

STATE = type(mulligan.open("memory:").session("s").state)

SIGNATURES: list[tuple[Callable[..., object], dict[str, object]]] = [
    (mulligan.open, {"path": ..., "create": True}),
    (Store.session, {"self": ..., "name": ..., "create": True}),
    (Store.sessions, {"self": ...}),
    (Store.verify, {"self": ..., "full": True}),
    (Store.close, {"self": ...}),
    (STATE.get, {"self": ..., "path": "", "default": None}),
    (STATE.set, {"self": ..., "path": ..., "value": ...}),
    (STATE.append, {"self": ..., "path": ..., "value": ...}),
    (STATE.extend, {"self": ..., "path": ..., "values": ...}),
    (STATE.put, {"self": ..., "path": ..., "value": ...}),
    (STATE.delete, {"self": ..., "path": ...}),
    (Session.batch, {"self": ...}),
    (Session.checkpoint, {"self": ..., "kind": "manual", "note": None, "label": None}),
    (Session.checkpoints, {"self": ...}),
    (Session.state_at, {"self": ..., "point": ...}),
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
        assert found[name].default is not inspect.Parameter.empty, f"{name} must be optional"


def test_every_public_thing_says_what_it_is() -> None:
    named = [getattr(mulligan, name) for name in NAMES if name != "MISSING"]
    documented = [thing for thing in named if inspect.isclass(thing) or inspect.isfunction(thing)]
    assert [thing for thing in documented if not inspect.getdoc(thing)] == []
    for owner in (Store, Session, STATE):
        for name, member in inspect.getmembers(owner):
            if not name.startswith("_") and (callable(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{owner.__name__}.{name}"
