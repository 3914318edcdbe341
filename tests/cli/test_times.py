"""Times on the command line: shown in local time, and taken as they are shown."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Cli


@pytest.fixture(autouse=True)
def far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_all_times_for_people_are_local(store: Cli) -> None:
    store("checkpoint")
    (entry,) = store("log", "--json").json["entries"]
    assert entry["timestamp"].endswith("+00:00")
    listed = store("show", "nowhere").err
    assert "+05:30" in listed
    assert "+00:00" not in listed
    too_early = store("show", "1 week ago").err
    assert "+05:30" in too_early
    assert "+00:00" not in too_early


def test_a_time_from_the_log_is_a_point(store: Cli) -> None:
    taken = store("checkpoint").out.strip()
    shown = store("log").out
    clock = next(word for word in shown.split() if word.count(":") == 2)
    assert store("show", clock, "-q").out.strip() == taken


def test_an_age_in_words_is_a_point_and_needs_quotes(store: Cli) -> None:
    taken = store("checkpoint").out.strip()
    assert store("show", "0 minutes ago", "-q").out.strip() == taken
    assert "needs quotes" in store("show", "0", "minutes", "ago").err
