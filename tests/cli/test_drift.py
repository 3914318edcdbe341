"""mulligan drift: sparklines, explanations, points, recorded runs, and releasing an agent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mulligan
from mulligan.document.fold import event_change
from mulligan.drift.settings import DriftSettings
from mulligan.testing.planted import clean_run, plant
from tests.cli.test_contract import documented, section

MESSAGE = '{"role": "assistant", "content": "I will look into it."}'


@pytest.fixture
def loops(store):
    """A session in which one message comes three times, and then again."""
    for _ in range(4):
        store("state", "append", "conversation", MESSAGE)
    return store


def test_alarms_are_shown_with_their_evidence(loops) -> None:
    shown = loops("drift").out
    assert "cli  1 alarm, 0 warnings in 4 observations" in shown
    assert "same_message  ▁▄▅▁  highest 0.50  now 0.00" in shown
    assert "the same message came 3 times without an action in between (#2 #3 #4)" in shown
    assert loops("drift", "main", "--explain").code == 0
    assert loops("drift", "-q").out == "cli\n"


def test_a_session_can_be_judged_up_to_a_point(loops) -> None:
    assert "0 alarms" in loops("drift", "--at", "#3").out
    assert "1 alarm" in loops("drift", "--at", "#4").out
    assert loops("drift", "--at", "#99").code == 30
    loops("state", "set", "a", "1", "-s", "other", "--create")
    elsewhere = loops("drift", "main", "--at", "other:#1")
    assert (elsewhere.code, "mulligan drift other --at '#1'" in elsewhere.err) == (30, True)


@pytest.mark.parametrize("variable", [("TERM", "dumb"), ("NO_UTF8", "1")])
def test_plain_terminals_get_ascii(loops, monkeypatch, variable: tuple[str, str]) -> None:
    monkeypatch.setenv(*variable)
    shown = loops("drift").out
    assert shown.isascii()
    assert "_-=_" in shown


def test_nothing_to_judge_is_said(store) -> None:
    assert store("drift").out == "No agent has done anything yet that can be judged.\n"
    assert store("drift", "nowhere").code == 20


def test_the_fields_are_documented(loops) -> None:
    found = loops("drift", "--json").json
    assert set(found) == documented("drift show")
    [agent] = found["agents"]
    said = section("drift show")
    inner = [agent, agent["signals"][0], agent["alarms"][0]]
    assert all(f"`{field}`" in said for one in inner for field in one)
    assert loops("drift", "show", "main", "--json").json == found


def recorded(place: Path) -> Path:
    looping = plant(clean_run(1), "periodic", 1, DriftSettings()).trace
    file = place / "runs.jsonl"
    steps = [
        {"action": s.action, "args": s.args, "result": s.result, "i": s.i} for s in looping.steps
    ]
    clean = [{"action": s.action, "args": s.args, "result": s.result} for s in clean_run(2).steps]
    lines = [{"id": "bad", "steps": steps}, {"id": "good", "steps": clean}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_recorded_runs_are_judged_without_a_store(cli, place: Path) -> None:
    file = str(recorded(place))
    bad, good = [
        json.loads(line) for line in cli("drift", "replay", file, "--json").out.splitlines()
    ]
    assert set(bad) == documented("drift replay")
    assert (bad["id"], good["fired_at"]) == ("bad", None)
    assert bad["fired_at"] == bad["alarms"][0]["seq"]
    assert cli("drift", "replay", file, "-q").out == "bad\n"
    assert "good  no alarm, 20 steps" in cli("drift", "replay", file).out
    assert "a loop of" in cli("drift", "replay", file, "--explain").out


def test_a_file_that_is_no_recorded_run_is_refused(cli, place: Path) -> None:
    (place / "bad.jsonl").write_text("not json\n")
    refused = cli("drift", "replay", "bad.jsonl")
    assert (refused.code, "bad.jsonl:1: " in refused.err) == (110, True)
    assert cli("drift", "replay", "none.jsonl").code == 110


def isolate(place: Path) -> None:
    at = mulligan.open(place).session("main").created
    why = "it loops"
    response = {"at": at, "rung": "isolate", "signal": "stall", "why": why, "seq": 3, "since": 2}
    record = {
        "seq": 3,
        "responses": [{**response, "attempt": 1}],
        "isolated": {"at": at, "why": why},
    }
    control = [[["drift", "coder"], record]]
    session = mulligan.open(place).session("main")
    session.internal.commit_events(lambda _: [event_change("drift.saved", control=control)])


def test_an_isolated_agent_is_shown_and_released(store, place: Path) -> None:
    store("state", "set", "a", "1")
    isolate(place)
    assert "coder is isolated: it loops." in store("status").out
    [shown] = store("status", "--json").json["sessions"][0]["drift"]
    assert all(f"`{field}`" in section("status") for field in shown)
    assert shown["isolated"] is True
    assert store("drift", "release", "nobody").code == 42
    released = store("drift", "release", "coder", "--json").json
    assert set(released) == documented("drift release")
    assert "is isolated" not in store("status").out
    assert store("drift", "-s", "main", "release", "coder").code == 42


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[drift]\nsame_result = 1\n", "config.toml:2: drift.same_result: this is a whole number"),
        ("[drift]\n\nsame_reslt = 4\n", "config.toml:3: drift.same_reslt: there is no such key"),
        ("[drift]\noff = ['stal']\n", "config.toml:2: drift.off: there is no signal 'stal'"),
        ("[drift.ladder]\nrefresh = -1\n", "config.toml:2: drift.ladder.refresh: this is"),
        ("drift = 3\n", "config.toml:1: drift: this is a table"),
    ],
)
def test_a_mistake_in_the_settings_is_named_with_its_line(store, text: str, said: str) -> None:
    [config] = [Path(store("status", "--json").json["store"]) / "config.toml"]
    config.write_text(text)
    refused = store("drift")
    assert refused.code == 17
    assert said in refused.err


def test_the_settings_of_the_store_are_used(loops) -> None:
    config = Path(loops("status", "--json").json["store"]) / "config.toml"
    config.write_text("[drift]\nsame_message = 4\n")
    assert "(#2 #3 #4 #5)" in loops("drift").out
    config.write_text('[drift]\noff = ["same_message"]\n')
    assert "0 alarms" in loops("drift").out
