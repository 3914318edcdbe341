"""checkpoint, log, show, status, events."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest

import mulligan
from tests.stores import store_of


def test_checkpoint_prints_the_id_alone(store):
    taken = store("checkpoint", "-m", "a note", "--label", "one")
    assert taken.code == 0
    assert len(taken.out) == 33
    assert bytes.fromhex(taken.out.strip())
    assert store("show", "one", "-q").out == taken.out


def test_checkpoint_as_json(store):
    taken = store("checkpoint", "-k", "routine", "-m", "why", "--json").json
    assert (taken["kind"], taken["note"], taken["session"]) == ("routine", "why", "main")
    assert taken["label"] is None
    assert taken["actor"] == "cli"


def test_checkpoint_only_if_something_changed(store, place):
    (place / "file").write_text("one")
    first = store("checkpoint", "--if-changed")
    assert first.err == ""
    again = store("checkpoint", "--if-changed", "-m", "why")
    assert (again.code, again.out) == (0, first.out)
    assert "Nothing has changed since the checkpoint #2" in again.err
    quiet = store("checkpoint", "--if-changed", "-q")
    assert (quiet.out, quiet.err) == (first.out, "")
    assert store("checkpoint", "--if-changed", "--json").json["seq"] == 2
    (place / "file").write_text("two")
    assert store("checkpoint", "--if-changed", "--json").json["seq"] == 3
    store("state", "set", "memory/x", "1")
    assert store("checkpoint", "--if-changed", "--json").json["seq"] == 5
    for option in (["--label", "one"], ["--team"]):
        refused = store("checkpoint", "--if-changed", *option)
        assert refused.code == 2
        assert "--if-changed" in refused.err


def test_checkpoint_refuses_a_strange_kind(store):
    failed = store("checkpoint", "-k", "@kind")
    assert failed.code == 22
    assert "'@kind'" in failed.err


@pytest.fixture
def history(store):
    """A store with a restore, an undo and a fork in its past."""
    store("state", "set", "memory/goal", "first")
    store("checkpoint", "--label", "one", "-m", "the first")
    store("state", "set", "memory/goal", "second")
    store("checkpoint", "-k", "routine")
    store("restore", "one", "--only", "memory")
    store("undo")
    store("fork", "one", "--name", "branch")
    return store


def test_log_is_newest_first_with_restores_between(history):
    entries = history("log", "--json").json["entries"]
    assert [entry["seq"] for entry in entries] == sorted(
        (entry["seq"] for entry in entries), reverse=True
    )
    assert [entry["type"] for entry in entries] == [
        "restore",
        "checkpoint",
        "restore",
        "checkpoint",
        "checkpoint",
        "checkpoint",
    ]
    assert [entries[0]["mode"], entries[2]["mode"]] == ["undo", "restore"]
    assert entries[2]["only"] == ["memory"]
    assert entries[2]["to"] == {"session": "main", "seq": entries[-1]["seq"]}


def test_log_for_people(history):
    said = history("log").out
    lines = said.splitlines()
    assert "undo" in lines[0]
    assert "restore" in lines[2]
    assert "only memory" in lines[2]
    assert "one  the first" in lines[-1]
    assert "manual" in lines[-1]
    assert "\x1b" not in said


def test_log_of_a_fork_shows_where_it_came_from(history):
    entries = history("log", "-s", "branch", "--json").json["entries"]
    assert entries[0]["type"] == "fork"
    assert entries[0]["from"] == {"session": "main", "seq": 3}
    assert entries[1]["label"] == "one"
    assert "fork" in history("log", "-s", "branch").out.splitlines()[0]


def test_log_stops_at_the_number_asked_for(history):
    short = history("log", "-n", "2", "--json").json
    assert len(short["entries"]) == 2
    assert short["more"] is True
    assert history("log", "-n", "0", "--json").json["more"] is False
    assert "-n 0" in history("log", "-n", "2").err


def test_log_quiet_is_ids_of_checkpoints_only(history):
    (newest,) = history("log", "-q", "-n", "1").out.splitlines()
    assert newest == history("show", newest, "-q").out.strip()
    assert len(history("log", "-q").out.splitlines()) == 4


def test_log_of_a_new_session_says_what_to_do(store):
    empty = store("log")
    assert (empty.code, empty.out) == (0, "")
    assert "mulligan checkpoint" in empty.err


def test_show_is_the_record_of_the_issue(store, write):
    write("agents/coder", {"process_id": 7, "state": "working"})
    store("state", "set", "config", '{"model": "m"}')
    first = store("checkpoint").out.strip()
    store("state", "set", "memory/x", "1")
    store("state", "append", "conversation", '{"role": "user", "content": "hi"}')
    store("checkpoint", "--label", "two", "-m", "why")
    record = store("show", "--json").json
    assert record["parent"] == first
    assert (record["label"], record["note"]) == ("two", "why")
    system = record["system_state"]
    assert system["orchestrator"] == {"active_sessions": ["main"], "configuration": {"model": "m"}}
    assert system["agents"] == {
        "coder": {
            "process_id": 7,
            "current_prompt": None,
            "state": "working",
            "last_action": None,
            "working_on": None,
        }
    }
    assert system["shared_memory"]["keys_modified"] == ["conversation", "memory"]
    assert len(system["shared_memory"]["snapshot"]) == 64
    assert record["recovery_instructions"]["restore_order"] == [
        "shared_state",
        "workspace",
        "orchestrator",
        "agents",
    ]
    assert "mulligan" in record["recovery_instructions"]["required_tools"]


def test_show_lists_only_sessions_that_were_there(store):
    store("checkpoint", "--label", "early")
    store("checkpoint", "-s", "later", "--create")
    early = store("show", "early", "--json").json
    assert early["system_state"]["orchestrator"]["active_sessions"] == ["main"]


def test_show_prefers_what_the_orchestrator_wrote(store, write):
    write("orchestrator/active_sessions", ["a", "b"])
    write("agents", "nonsense")
    store("checkpoint")
    system = store("show", "--json").json["system_state"]
    assert system["orchestrator"]["active_sessions"] == ["a", "b"]
    assert system["agents"] == {}


def test_show_for_people(store, write):
    write("agents/coder", {"process_id": 7, "working_on": "the parser"})
    taken = store("checkpoint", "--label", "one").out.strip()
    said = store("show").out
    assert taken in said
    assert "one" in said
    assert "pid 7" in said
    assert "the parser" in said


def test_show_and_log_have_the_data_of_a_checkpoint(store, place):
    with mulligan.open(place) as opened:
        opened.session("main").checkpoint(label="one", data={"step": 7, "raw": b"\0"})
    assert 'data     {"raw": {"$bytes": "AA=="}, "step": 7}' in store("show").out
    data = {"step": 7, "raw": {"$bytes": "AA=="}}
    assert store("show", "--json").json["data"] == data
    assert [one["data"] for one in store("log", "--json").json["entries"]] == [data]
    store("checkpoint")
    assert store("show", "--json").json["data"] == {}
    assert "data" not in store("show").out


def test_show_takes_the_checkpoint_before_a_point(history):
    assert history("show", "#4", "--json").json["label"] == "one"


def test_status_for_people_and_programs(history, place):
    status = history("status", "--json").json
    assert status["format"] == 1
    assert 0 < status["size_bytes"] < 10_000_000
    main, branch = status["sessions"]
    assert main["parent"] is None
    assert branch["parent"] == {"session": "main", "seq": 3}
    assert branch["checkpoint"]["label"] == "one"
    said = history("status").out
    assert str(store_of(place)) in said
    assert "main #3" in said


def test_status_of_a_session_without_checkpoints(store):
    assert store("status", "--json").json["sessions"][0]["checkpoint"] is None
    assert "none" in store("status").out


def test_events_are_oldest_first_one_line_each(history):
    lines = history("events").out.splitlines()
    assert lines[0].startswith("#1 ")
    assert "state.set" in lines[1]
    assert 'memory/goal = "first"' in lines[1]
    events = [json.loads(line) for line in history("events", "--json").out.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(lines) + 1))
    assert all(b["prev"] == a["hash"] for a, b in pairwise(events))


def test_events_of_a_supervisor_are_in_columns_and_say_nothing_twice(store, place):
    store("run", "--agent", "coder", "--", "true")
    lines = store("events").out.splitlines()
    assert len({re.search(r"[a-z]+\.[a-z]+", line).start() for line in lines}) == 1
    [started] = [line for line in lines if "agent.started" in line]
    assert started.count("process_id=") == 1


def test_events_can_be_narrowed(history):
    def seqs(*args: str) -> list[int]:
        out = history("events", "--json", *args).out
        return [json.loads(line)["seq"] for line in out.splitlines()]

    everything = seqs()
    assert seqs("-n", "2") == everything[-2:]
    assert seqs("--since", "one", "--until", "#5") == [4, 5]
    assert seqs("--kind", "state") == [2, 4]
    assert seqs("--kind", "state.set", "-n", "1") == [4]
    assert seqs("--kind", "stat") == []
    assert seqs("--kind", "state", "--kind", "session") == [1, 2, 4]
    assert seqs("--since", "#4", "-n", "100") == everything[4:]


def test_text_from_an_agent_cannot_command_the_terminal(store):
    store("state", "set", "x", "--text", "\x1b[2J\x9b31m\nboo")
    store("checkpoint", "-m", "\x1b]0;title\x07 note")
    for command in (["events"], ["log"], ["show"], ["diff", "#1"]):
        said = store(*command).out
        assert "\x1b" not in said
        assert "\x9b" not in said
        assert "\x07" not in said


def test_the_log_of_a_session_without_checkpoints_names_the_command_for_its_events(store):
    assert "mulligan events" not in store("log").err
    store("state", "set", "a", "1")
    empty = store("log")
    assert (empty.code, empty.out) == (0, "")
    assert "`mulligan events` lists what it recorded." in empty.err
