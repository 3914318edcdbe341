"""mulligan resume: which session, what it says, and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import mulligan
from mulligan.document.fold import event_change
from tests.stores import store_of
from tests.unit.recovery.dead import control, dead


@pytest.fixture
def lost(store, place: Path):
    """An agent that nobody supervised died at work; returns how to run commands."""
    with mulligan.open(place) as opened:
        session = opened.session("main", actor="coder")
        session.agent.update(
            state="working", prompt="fix it", command=["python", "my agent.py"], directory="/work"
        )
        session.tasks.plan(["one", "two"])
        session.tasks.claim()
        session.state.set("memory/x", 1)
        session.checkpoint(label="start")
        session.state.set("memory/x", 2)
        dead(session, "coder")
    return store


def test_nothing_to_resume_is_said_and_is_no_failure(store):
    done = store("resume")
    assert done.code == 0
    assert "nothing to resume" in done.out
    assert store("resume", "main").code == 0
    assert store("resume", "--json").json["session"] is None


def test_an_agent_without_a_supervisor_is_prepared_for(lost, place: Path):
    done = lost("resume")
    assert done.code == 0
    assert "was interrupted" in done.err
    assert "Start coder again in /work: python 'my agent.py'." in done.out
    assert "nothing to resume" in lost("resume").out
    assert lost("state", "get", "memory/x").out.strip() == "2"
    entry = lost("log", "--json").json["entries"][0]
    assert entry["kind"] == "recovery"
    assert entry["files"] is not None


def test_json_says_all_of_it(lost):
    done = lost("resume", "--json").json
    assert (done["applied"], done["rung"], done["start"]) == (True, "retry", ["coder"])
    assert done["next_task"] == "one"
    [agent] = done["interruption"]["agents"]
    assert (agent["name"], agent["tasks"], agent["is_alive"]) == ("coder", ["one"], False)


def test_a_dry_run_changes_nothing(lost):
    before = lost("events", "--json").out
    done = lost("resume", "--rollback", "--reset", "memory", "--dry-run", "main")
    assert done.code == 0
    assert "go back to main #" in done.out
    assert "Would be emptied: memory." in done.out
    assert "dry run" in done.out
    assert lost("events", "--json").out == before


def test_back_to_a_point_with_a_component_emptied(lost):
    done = lost("resume", "--from", "start", "--reset", "tasks", "--json").json
    assert done["to"]["seq"] > 0
    assert lost("state", "get", "memory/x").out.strip() == "1"
    assert json.loads(lost("state", "get", "tasks").out) == {}


def test_one_agent_and_what_others_used(lost, place: Path):
    with mulligan.open(place) as opened:
        coder = opened.agent("coder", session="main", steal=True)
        coder.mailbox.send("tester", "look", id="look")
        opened.session("main", actor="tester").mailbox.receive()
        coder.internal.release()
        dead(opened.session("main"), "coder")
    done = lost("resume", "--from", "start", "--only", "coder", "--dry-run")
    assert "Warning: tester has received already: mail look" in done.out
    plan = lost("resume", "--from", "start", "--only", "coder", "--dry-run", "--json").json
    assert plan["consumed"][0]["by"] == "tester"


def test_several_sessions_are_listed(lost, place: Path):
    with mulligan.open(place) as opened:
        other = opened.session("other", actor="writer")
        other.agent.update(state="working")
        dead(other, "writer")
    done = lost("resume")
    assert done.code == 20
    assert "main: the process of coder is dead" in done.err
    assert "other: the process of writer is dead" in done.err
    assert lost("resume", "other").code == 0
    assert lost("resume").code == 0  # only one is left


def test_a_dry_run_says_what_would_be(lost, place: Path):
    said = lost("resume", "--rollback", "--reset", "tasks", "--reset", "memory", "--dry-run").out
    assert "State and files would go back to main #" in said
    assert "Would be emptied: tasks, memory." in said
    assert "work" not in said.split("dry run")[0].split("State")[1], "there is no task to go on at"
    assert "would be lost" in lost("resume", "--dry-run").out
    with mulligan.open(place) as opened:
        control(opened.session("main"), "status", "paused")
    assert "main would be resumed." in lost("resume", "--dry-run").out


def test_a_dry_run_leaves_the_store_as_it_is(lost, place: Path):
    assert lost("checkpoint").code == 0
    (place / "new.txt").write_text("in no checkpoint\n")
    before = {file: file.read_bytes() for file in (store_of(place) / "packs").iterdir()}
    plan = lost("resume", "--rollback", "--dry-run", "--json").json
    assert plan["files"] == 1
    after = {file: file.read_bytes() for file in (store_of(place) / "packs").iterdir()}
    assert after == before


def test_a_component_that_is_not_there_yet_is_no_failure(lost, place: Path):
    with mulligan.open(place) as opened:
        opened.session("main").state.delete("memory")
    said = lost("resume", "--reset", "memory", "--dry-run")
    assert said.code == 0
    assert "nothing to empty in memory: nothing is stored there yet" in said.out
    assert lost("resume", "--reset", "memroy").code == 42
    done = lost("resume", "--reset", "memory")
    assert done.code == 0
    assert "Nothing to empty in memory" in done.err


def test_two_names_for_one_session_are_refused(lost, monkeypatch: pytest.MonkeyPatch):
    for args in (("-s", "b", "resume", "c"), ("resume", "-s", "b", "c")):
        refused = lost(*args)
        assert refused.code == 2
        assert "'b' (-s) or 'c'" in refused.err
    assert lost("-s", "main", "resume", "main", "--dry-run").code == 0
    monkeypatch.setenv("MULLIGAN_SESSION", "b")  # as an agent has it
    assert "main was interrupted" in lost("resume", "main", "--dry-run").out


@pytest.mark.parametrize(
    "args",
    [
        ["--from", "start", "--rollback"],
        ["--only", "coder"],
        ["--watch", "--rollback"],
        ["--watch", "--dry-run"],
    ],
)
def test_choices_that_exclude_each_other(lost, args: list[str]):
    assert lost("resume", *args).code == 2


def test_a_session_that_is_run_is_left_alone(lost, place: Path):
    with mulligan.open(place) as opened:
        supervisor = opened.agent("supervisor", session="main")
        control(supervisor, "status", "running")
        assert "nothing to resume" in lost("resume").out
        refused = lost("resume", "main", "--rollback")
        assert refused.code == 100
        assert "mulligan pause" in refused.err


def test_an_unknown_session_or_agent(lost):
    assert lost("resume", "nobody").code == 20
    assert lost("resume", "--rollback", "--only", "nobody").code == 42


def test_a_team_that_cannot_be_started_is_refused_before_anything_is_touched(lost, place: Path):
    with mulligan.open(place) as opened:
        session = opened.session("main")
        agent = {"command": ["true"], "pass_env": ["NO_SUCH_VARIABLE_HERE"]}
        session.internal.state.set("orchestrator/workflow", {"agents": {"coder": agent}})
        control(session, "status", "running")
        head = session.head
        refused = lost("resume")
        assert refused.code == 93
        assert "NO_SUCH_VARIABLE_HERE" in refused.err
        assert session.head == head


def test_a_wrong_point_is_refused_before_anything_is_ended(store, place):
    with mulligan.open(place) as opened:
        session = opened.session("main")
        session.internal.commit_events(
            lambda _: [event_change("orchestrator.started", control=[[["status"], "running"]])]
        )
    refused = store("resume", "main", "--from", "nowhere")
    assert (refused.code, "nowhere" in refused.err) == (30, True)
    with mulligan.open(place) as opened:
        assert [c.kind for c in opened.session("main").checkpoints()] == []


def test_a_session_that_runs_is_not_said_to_be_nothing(store, place):
    with mulligan.open(place) as opened:
        opened.agent("supervisor", session="main")
        assert f"main is running: process {os.getpid()}" in store("resume", "main").out
