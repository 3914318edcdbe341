"""Every error has its own exit code, a hint, and a place in the drawn tree."""

from __future__ import annotations

import inspect
import re

import pytest

from mulligan import errors
from mulligan.errors import MulliganError

CLASSES = [
    thing
    for _, thing in inspect.getmembers(errors, inspect.isclass)
    if issubclass(thing, MulliganError)
]
LEAVES = [thing for thing in CLASSES if not thing.__subclasses__()]
BRANCHES = [thing for thing in CLASSES if thing not in LEAVES]


def drawn() -> dict[str, int | None]:
    """Return the names in the docstring's tree with their exit codes."""
    found = re.findall(r"^\s+[│├└─ ]*(\w+)(?: \((\d+)\))?", errors.__doc__ or "", re.MULTILINE)
    return {name: int(code) if code else None for name, code in found}


def test_exit_codes_are_unique() -> None:
    codes = [leaf.exit_code for leaf in LEAVES]
    assert sorted(codes) == sorted(set(codes))
    assert not {0, 1, 2} & set(codes), "0 is success, 1 is any error, 2 is a wrong command line"
    assert all(code < 126 for code in codes), "shells use the codes from 126 on"


@pytest.mark.parametrize("leaf", LEAVES)
def test_every_error_is_one_sentence_with_a_hint(leaf: type[MulliganError]) -> None:
    error = leaf("Something is wrong.")
    assert str(error) == "Something is wrong."
    assert error.hint == leaf.default_hint != ""
    assert error.hint.endswith(".")
    assert leaf("x", hint="Do this.").hint == "Do this."


@pytest.mark.parametrize("branch", BRANCHES)
def test_a_branch_is_caught_with_its_leaves(branch: type[MulliganError]) -> None:
    assert any(issubclass(leaf, branch) for leaf in LEAVES)
    assert branch.exit_code == MulliganError.exit_code


def test_the_docstring_draws_the_whole_tree() -> None:
    tree = drawn()
    assert set(tree) >= {thing.__name__ for thing in CLASSES}
    assert {leaf.__name__: leaf.exit_code for leaf in LEAVES} == {
        leaf.__name__: tree[leaf.__name__] for leaf in LEAVES
    }


def test_a_retry_helps_exactly_where_nothing_has_to_be_changed() -> None:
    retryable = {thing.__name__ for thing in CLASSES if thing.retryable}
    assert retryable == {
        "DiskFull",
        "StoreUnwritable",
        "Conflict",
        "BatchOpen",
        "LeaseHeld",
        "RestoreBusy",
        "StoreInUse",
        "UpkeepBusy",
        "ApprovalPending",
    }
