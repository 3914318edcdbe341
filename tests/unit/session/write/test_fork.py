"""Forks: what they look up while they hold the write lock."""

from __future__ import annotations

from pathlib import Path

import pytest

from mulligan import Session
from mulligan.testing.stores import open_store
from tests.decoded import DecodedEvents

EVENTS = 300


def _played(session: Session) -> Session:
    for number in range(EVENTS):
        session.state.append("log", number)
    return session


def test_a_fork_in_the_past_replays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(tmp_path / "store") as store:
        session = _played(store.session("run"))
        counter = DecodedEvents(monkeypatch)
        forks = []
        read = counter.during(lambda: forks.extend(session.fork(f"#{seq}") for seq in (100, 200)))
        assert read <= 10
        assert [len(fork.state.get("log")) for fork in forks] == [99, 199]


def test_a_fork_with_marks_and_effects_replays_its_point_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(tmp_path / "store") as store:
        session = _played(store.session("run"))
        checkpoint = session.checkpoint("routine", label="here")
        with session.effect("mail.send", intent={"to": "ann@example.com"}) as effect:
            effect.result = "sent"
        _played(session)
        session.checkpoints.mark(checkpoint, "good")
        counter = DecodedEvents(monkeypatch)
        forks = []
        read = counter.during(lambda: forks.append(session.fork(checkpoint)))
        assert read <= EVENTS + 20
        assert forks[0].checkpoints.at("@good").id == checkpoint.id
        assert len(forks[0].effects.list()) == 1
