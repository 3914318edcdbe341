"""Checks of the store: settings, the record on the timeline, pace, and by itself."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event

import pytest

import mulligan
from mulligan.errors import InvalidConfig, InvalidWorkflow
from mulligan.store import engine_of
from mulligan.supervisor.workflow import from_plain, parse
from mulligan.testing.clock import FakeClock
from mulligan.testing.objects import noise
from mulligan.testing.stores import open_store
from mulligan.upkeep.verify.background import STARTED, verify_if_due
from mulligan.upkeep.verify.record import last_verify, newest_verify, record_report
from mulligan.upkeep.verify.settings import (
    Pace,
    VerifySettings,
    fraction,
    fraction_text,
    read_verify,
    verify_command,
)
from tests.damage import flip_object

BIG = noise(300_000, 7)
DAY = 86_400.0


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store with a file in two sessions; returns its directory."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "big.bin").write_bytes(BIG)
    with mulligan.open(tmp_path) as store:
        store.session("run", workspace=tmp_path / "work", force=True).checkpoint()
        store.session("other").state.set("x", 1)
    return tmp_path / ".mulligan"


# --- settings -------------------------------------------------------------------------------


def test_the_defaults_check_a_small_part_every_day(place: Path) -> None:
    assert read_verify(place) == VerifySettings(every=DAY, sample=0.05, rate=50_000_000)


def test_the_settings_of_a_store(place: Path) -> None:
    (place / "config.toml").write_text('[verify]\nevery = "7d"\nsample = "0.5%"\nrate = "8MB"\n')
    assert read_verify(place) == VerifySettings(every=7 * DAY, sample=0.005, rate=8_000_000)
    (place / "config.toml").write_text("[verify]\nevery = 0\n")
    assert read_verify(place).every is None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('evry = "1d"', "there is no such key; did you mean 'every'?"),
        ('every = "often"', "not a duration"),
        ('sample = "200%"', "is not a part such as '5%'"),
        ('sample = "5"', "is not a part such as '5%'"),
        ("sample = 5", "this is a part such as '5%', not 5"),
        ('rate = "fast"', "not a size"),
    ],
)
def test_a_mistake_is_refused_with_file_and_line(place: Path, line: str, says: str) -> None:
    file = place / "config.toml"
    file.write_text(f"[verify]\n# first\n{line}\n")
    with pytest.raises(InvalidConfig) as caught:
        mulligan.open(place.parent)
    assert f"{file}:3: verify." in str(caught.value)
    assert says in str(caught.value)


def test_a_workflow_has_settings_of_its_own(tmp_path: Path) -> None:
    text = '[agents.a]\ncommand = ["true"]\n'
    assert parse(text, tmp_path / "w.toml").verify is None
    made = parse(f'{text}[verify]\nevery = "1h"\n', tmp_path / "w.toml")
    assert made.verify == VerifySettings(every=3600.0)
    assert from_plain(made.to_plain()).verify == made.verify
    with pytest.raises(InvalidWorkflow, match=r"w.toml:4: verify.rte: there is no such key"):
        parse(f"{text}[verify]\nrte = 1\n", tmp_path / "w.toml")


@pytest.mark.parametrize("text", ["5%", "0.5%", "100%", "33.3%"])
def test_parts_go_both_ways(text: str) -> None:
    assert fraction_text(fraction(text)) == text


def test_the_command_in_the_background_says_it_all() -> None:
    command = verify_command(VerifySettings(sample=0.1, rate=123), "/store")
    assert command[:3] == ["verify", "--background", "--quiet"]
    assert command[3:] == ["--sample", "10%", "--rate", "123B", "--store", "/store"]


def test_a_pace_waits_as_long_as_the_rate_wants() -> None:
    clock = FakeClock()
    began = clock.monotonic()
    pace = Pace(1000, clock)
    for _ in range(5):
        pace(500)
    assert clock.monotonic() - began == pytest.approx(2.5)
    clock.advance(10)
    before = clock.monotonic()
    pace(500)  # it is behind, and does not wait
    assert clock.monotonic() == before


# --- samples --------------------------------------------------------------------------------


def test_a_sample_reads_a_part_and_its_seed_reads_it_again(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        session = store.session("run")
        for number in range(40):
            session.state.set(f"k{number}", noise(20_000 + number, number).hex())
        full = store.verify()
        assert full.read_bytes > 0.9 * full.stored_bytes
        assert store.verify(full=False).read_bytes == 0
        parts = [store.verify(sample=0.1) for _ in range(6)]
        assert all(0 < part.read_bytes < 0.3 * full.stored_bytes for part in parts)
        assert len({part.read_bytes for part in parts}) > 1
        [one, two] = [store.verify(sample=0.1, seed=parts[0].seed) for _ in range(2)]
        assert one.read_bytes == two.read_bytes == parts[0].read_bytes
        assert store.verify(sample=1.0).read_bytes == full.read_bytes


def test_a_sample_of_nothing_is_refused(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        for sample in (0.0, -1.0, 1.5):
            with pytest.raises(ValueError, match="sample"):
                store.verify(sample=sample)
        assert store.verify(sample=0.5).ok  # of an empty store


def test_samples_find_damage_sooner_or_later(place: Path) -> None:
    with mulligan.open(place.parent) as store:
        flip_object(engine_of(store), BIG)
        found = [store.verify(sample=0.5, seed=seed).ok for seed in range(8)]
    assert False in found


# --- the record -----------------------------------------------------------------------------


def test_the_result_is_an_event_and_the_newest_one_counts(place: Path) -> None:
    with open_store(place.parent, clock=FakeClock()) as store:
        run, other = store.session("run"), store.session("other")
        assert newest_verify(store) is None
        made = record_report(run, store.verify(), 1.5)
        assert last_verify(run) == made
        assert (made.ok, made.full, made.seconds) == (True, True, 1.5)
        engine_of(store).clock.advance(10)  # type: ignore[attr-defined]
        flip_object(engine_of(store), BIG)
        failed = record_report(other, store.verify(sample=1.0), 2.0)
        assert not failed.ok
        assert failed.problems[0].what == "object"
        assert newest_verify(store) == failed
        kinds = [event.kind for session in (run, other) for event in session.events()]
        assert [kind for kind in kinds if kind.startswith("verify.")] == [
            "verify.passed",
            "verify.failed",
        ]


def test_a_rollback_does_not_forget_it(place: Path) -> None:
    with mulligan.open(place.parent) as store:
        other = store.session("other")
        other.checkpoint(label="here")
        made = record_report(other, store.verify(), 1.0)
        other.restore("here")
        assert last_verify(other) == made


# --- by itself ------------------------------------------------------------------------------


def test_a_program_that_runs_for_long_has_its_store_checked(place: Path) -> None:
    with mulligan.open(place.parent) as store:
        engine = engine_of(store)
        assert verify_if_due(engine, Event()) == 0
        last = newest_verify(store)
        assert last is not None
        assert last.sample == 0.05
        assert verify_if_due(engine, Event()) is None  # once a day
        flip_object(engine, BIG)
        (place / "config.toml").write_text('[verify]\nsample = "100%"\n')
        (place / "tmp" / STARTED).write_text(json.dumps("2020-01-01T00:00:00Z"))
        assert verify_if_due(engine, Event()) == 60
        failed = newest_verify(store)
        assert failed is not None
        assert not failed.ok


def test_closing_the_store_ends_a_check(place: Path) -> None:
    (place / "config.toml").write_text('[verify]\nsample = "100%"\nrate = "1B"\n')
    stop = Event()
    stop.set()
    with mulligan.open(place.parent) as store:
        assert verify_if_due(engine_of(store), stop) != 0
        assert newest_verify(store) is None
    (place / "config.toml").unlink()
    with mulligan.open(place.parent) as store:  # the next process checks it, not that of tomorrow
        assert verify_if_due(engine_of(store), Event()) == 0
        assert newest_verify(store) is not None


def test_every_zero_is_never(place: Path) -> None:
    (place / "config.toml").write_text("[verify]\nevery = 0\n")
    with mulligan.open(place.parent) as store:
        assert verify_if_due(engine_of(store), Event()) is None
