"""Times as people write them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from mulligan.timeline.times import parse_ago, parse_clock, parse_iso, shown

NOW = datetime(2026, 6, 15, 12, 30, 20, tzinfo=UTC)


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kolkata"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A local time zone."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("10m ago", timedelta(minutes=10)),
        ("36 minutes ago", timedelta(minutes=36)),
        ("1 minute ago", timedelta(minutes=1)),
        ("90 SECS ago", timedelta(seconds=90)),
        ("1 hour 30 minutes ago", timedelta(minutes=90)),
        ("1 hour, 30 min ago", timedelta(minutes=90)),
        ("2h30m ago", timedelta(minutes=150)),
        ("1.5 hrs ago", timedelta(minutes=90)),
        ("3 days ago", timedelta(days=3)),
        ("2 weeks ago", timedelta(weeks=2)),
    ],
)
def test_an_age(text: str, age: timedelta) -> None:
    assert parse_ago(text, NOW) == NOW - age


@pytest.mark.parametrize("text", ["ago", "10m", "10 months ago", "10mago", "m ago", "10 ago", ""])
def test_no_age(text: str) -> None:
    assert parse_ago(text, NOW) is None


def test_a_clock_time_is_the_last_local_one(zone: str) -> None:
    here = NOW.astimezone()
    for minutes in (0, 1, 60, 23 * 60):
        earlier = here - timedelta(minutes=minutes)
        found = parse_clock(earlier.strftime("%H:%M"), NOW)
        assert found is not None
        assert found.replace(second=0, microsecond=0) == earlier.replace(second=0, microsecond=0)
    later = here + timedelta(minutes=1)
    assert parse_clock(later.strftime("%H:%M"), NOW) < NOW - timedelta(hours=23)


def test_a_clock_time_includes_what_is_shown_with_it(zone: str) -> None:
    event = (NOW - timedelta(minutes=5)).replace(microsecond=999_999)
    for form in ("%H:%M:%S", "%H:%M"):
        found = parse_clock(event.astimezone().strftime(form), NOW)
        assert found is not None
        assert found >= event
    exact = parse_clock(event.astimezone().strftime("%H:%M:%S"), NOW)
    assert exact is not None
    assert exact < event + timedelta(seconds=1)


@pytest.mark.parametrize("text", ["24:00", "11:60", "11", "11:26:61", "11.26", "111:26", "-1:00"])
def test_no_clock_time(text: str) -> None:
    assert parse_clock(text, NOW) is None


def test_what_messages_show_is_local_and_can_be_given_back(zone: str) -> None:
    assert shown(NOW) == NOW.astimezone().isoformat(" ")
    assert parse_iso(shown(NOW)) == NOW
