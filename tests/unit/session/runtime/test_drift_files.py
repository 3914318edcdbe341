"""Files that go back and forth between two contents are drift; work on them is progress."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import mulligan
from mulligan import Session
from mulligan.session.runtime.drift_report import drift_report
from mulligan.session.runtime.drift_watch import DriftSettings, DriftWatch


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    (tmp_path / "work").mkdir()
    store = mulligan.open(tmp_path / "store")
    opened = store.agent("coder", session="main", workspace=tmp_path / "work")
    yield opened
    opened.close()
    store.close()


def write(session: Session, tmp_path: Path, *texts: str) -> None:
    for text in texts:
        (tmp_path / "work" / "a.py").write_text(text)
        session.checkpoint("routine")


def test_a_file_that_flips_is_an_alarm(session: Session, tmp_path: Path) -> None:
    write(session, tmp_path, "", *["one", "two"] * 3)
    [agent] = drift_report(session, DriftSettings())
    [alarm] = [one.alarm for one in agent.alarms]
    assert (alarm.signal, alarm.why) == (
        "backwards",
        "progress went backwards 3 times, last file a.py",
    )
    [response] = DriftWatch(session, "coder", DriftSettings()).look()
    assert response.signal == "backwards"


def test_a_file_that_gets_further_is_not(session: Session, tmp_path: Path) -> None:
    write(session, tmp_path, "", "one", "two", "one", "three", "four", "five")
    [agent] = drift_report(session, DriftSettings())
    assert agent.alarms == ()
    assert agent.observations == 6


def test_a_file_that_is_written_again_as_it_was_is_neither(
    session: Session, tmp_path: Path
) -> None:
    write(session, tmp_path, *["one"] * 6)
    assert drift_report(session, DriftSettings()) == []


def test_a_tree_that_was_removed_counts_as_one_content(session: Session) -> None:
    gone = session.internal.changed_contents(b"\1" * 32, b"\2" * 32)
    assert gone == [("workspace", (b"\2" * 32).hex())]
