"""Health commands: their verdict marks a checkpoint; they never outlive their time."""

from __future__ import annotations

import sys
import time

import pytest

import mulligan
from mulligan import Session
from mulligan.recovery.health import health, run_command


@pytest.fixture
def session() -> Session:
    made = mulligan.open("memory:").session("run")
    made.checkpoint(label="one")
    made.checkpoint(label="two")
    return made


def test_success_and_failure_mark_the_latest_checkpoint(session: Session) -> None:
    assert health(session, ["true"], None)
    assert session.find_checkpoint("@good").label == "two"
    assert not health(session, ["sh", "-c", "exit 3"], None)
    mark = session.marks()[session.find_checkpoint("two").id]
    assert (mark.verdict, mark.note) == ("bad", "the health command ended with status 3")


def test_a_checkpoint_can_be_named(session: Session) -> None:
    assert health(session, ["true"], None, checkpoint=session.find_checkpoint("one"))
    assert session.find_checkpoint("@good").label == "one"


def test_what_takes_too_long_is_bad(session: Session) -> None:
    began = time.monotonic()
    assert not health(session, ["sh", "-c", "sleep 60 & sleep 60"], None, 0.2)
    assert time.monotonic() - began < 20
    assert session.find_checkpoint("@bad").label == "two"


def test_what_cannot_be_run_says_nothing(session: Session) -> None:
    assert not health(session, ["no-such-program"], None)
    assert session.marks() == {}


def test_it_runs_where_and_with_what_it_is_told(tmp_path) -> None:  # type: ignore[no-untyped-def]
    code = f"import os, sys; sys.exit(os.getcwd() != {str(tmp_path)!r} or os.environ['A'] != 'b')"
    assert run_command([sys.executable, "-c", code], tmp_path, 30, {"A": "b"}) == 0
