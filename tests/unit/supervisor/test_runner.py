"""Supervising from a program: who is started, and how the session is left."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan import Session, Store
from mulligan.document.values import freeze
from mulligan.errors import InvalidWorkflow, LeaseHeld, NotAStore, NotRunning, StaleLease
from mulligan.supervisor import requests, runner
from mulligan.supervisor import team as team_module
from mulligan.supervisor.records import Records
from mulligan.supervisor.requests import request_checkpoint, request_pause
from mulligan.supervisor.run import (
    ResumeChoice,
    RunOptions,
    RunReporter,
    resume_session,
    run_team,
)
from mulligan.supervisor.team import Show, Team
from mulligan.supervisor.workflow import AgentSpec, Workflow

VARIABLES = dict(os.environ)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return mulligan.open(tmp_path)


@pytest.fixture
def session(store: Store) -> Session:
    return store.session("main", actor="test")


def team(**commands: str) -> Workflow:
    agents = {
        name: AgentSpec(command=("sh", "-c", command), restart="never")
        for name, command in commands.items()
    }
    return Workflow(agents=agents)


class Recorder(RunReporter):
    def __init__(self, say: Callable[[str], None] | None, show: Show | None) -> None:
        self._say = say
        self._show = show

    def say(self, line: str) -> None:
        if self._say is not None:
            self._say(line)

    def output(self, agents: Sequence[str]) -> Show | None:
        return self._show


def supervise(
    store: Store,
    name: str,
    workflow: Workflow,
    *,
    variables: Mapping[str, str],
    say: Callable[[str], None] | None = None,
    show: Show | None = None,
) -> str:
    options = RunOptions(variables=variables, reporter=Recorder(say, show))
    return run_team(store, name, workflow, options).status


def pause(session: Session) -> None:
    """Leave a session as a supervisor does that was paused."""
    control = [[["status"], "paused"]]
    session.internal.commit_events(lambda _: [("orchestrator.finished", {"control": control})])


def test_a_team_that_is_done(store: Store, session: Session) -> None:
    said: list[str] = []
    workflow = team(a="exit 0", b="exit 0")
    assert supervise(store, "main", workflow, variables=VARIABLES, say=said.append) == "done"
    assert session.internal.control("status") == "done"
    assert not session.internal.is_held("supervisor")
    assert not session.internal.is_held("a")
    assert said[-1] == "main is done"
    assert session.checkpoints.at("@latest").note == "done"
    assert list((Path(str(store.path)) / "tmp/beats").iterdir()) == []


def test_a_resumed_team_starts_those_that_were_not_done(store: Store, session: Session) -> None:
    workflow = team(a="exit 0", b="exit 3")
    assert supervise(store, "main", workflow, variables=VARIABLES) == "failed"
    mended = team(a="exit 1", b="exit 0")
    session.internal.state.set("orchestrator/workflow", mended.to_plain())
    said: list[str] = []
    options = RunOptions(variables=VARIABLES, reporter=Recorder(said.append, None))
    outcome = resume_session(store, "main", ResumeChoice(), options)
    assert outcome.run is not None
    assert outcome.run.status == "done"
    assert not any(line.startswith("a started") for line in said)
    assert session.state.get("agents/b/restarts") == 1


def test_a_team_that_is_run_again_starts_every_agent(store: Store, session: Session) -> None:
    for _ in range(2):
        assert supervise(store, "main", team(a="exit 0"), variables=VARIABLES) == "done"
    assert session.internal.lease_of("a").epoch == 2
    assert session.state.get("agents/a/restarts") == 0


def test_an_interrupted_session_is_taken_over(store: Store, session: Session) -> None:
    first = store.agent("supervisor", session="main")
    first.internal.commit_events(
        lambda _: [("orchestrator.started", {"control": [[["status"], "running"]]})]
    )
    with pytest.raises(LeaseHeld, match="Another supervisor runs"):
        supervise(store, "main", team(a="exit 0"), variables=VARIABLES)
    first.internal.release()
    assert supervise(store, "main", team(a="exit 0"), variables=VARIABLES) == "done"
    kinds = [(taken.kind, taken.note) for taken in session.checkpoints()]
    assert kinds[0][0] == "recovery"
    assert kinds[0][1].startswith(f"before recovery: its supervisor, process {os.getpid()}, ")


def test_a_pause_is_heard_as_soon_as_the_session_is_taken_over(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = store.agent("supervisor", session="main")
    first.internal.commit_events(
        lambda _: [("orchestrator.started", {"control": [[["status"], "running"]]})]
    )
    first.internal.release()

    class Late(runner.CheckpointThread):
        def __init__(self, files: Session) -> None:
            super().__init__(files)
            control = [
                [["request"], {"id": "p", "kind": "pause", "deadline": files.internal.clock.now()}]
            ]
            session.internal.commit_events(
                lambda _: [("orchestrator.asked", {"control": freeze(control)})]
            )

    monkeypatch.setattr(runner, "CheckpointThread", Late)
    assert supervise(store, "main", team(a="sleep 20"), variables=VARIABLES) == "paused"


def test_what_an_agent_prints_can_be_had(store: Store) -> None:
    lines: list[tuple[str, bytes]] = []
    supervise(
        store,
        "main",
        team(a="echo one; echo two >&2"),
        variables=VARIABLES,
        show=lambda name, line: lines.append((name, line)),
    )
    assert lines == [("a", b"one"), ("a", b"two")]


def test_an_agent_gets_the_variables_and_nothing_of_who_runs_above(store: Store) -> None:
    lines: list[bytes] = []
    above = {**VARIABLES, "MULLIGAN_AGENT": "above", "MULLIGAN_PROMPT": "above", "MINE": "1"}
    script = "echo $MINE $MULLIGAN_AGENT $MULLIGAN_SESSION $MULLIGAN_EPOCH [$MULLIGAN_PROMPT]"
    supervise(store, "main", team(a=script), variables=above, show=lambda _, s: lines.append(s))
    assert lines == [b"1 a main 1 []"]


def test_an_agent_learns_its_own_interval_of_checkpoints(store: Store) -> None:
    lines: list[tuple[str, bytes]] = []
    say = ("sh", "-c", "echo $MULLIGAN_CHECKPOINT_INTERVAL")
    agents = {"a": AgentSpec(command=say, checkpoint_interval=60), "b": AgentSpec(command=say)}
    workflow = Workflow(agents=agents, checkpoint_interval=600)
    supervise(store, "main", workflow, variables=VARIABLES, show=lambda *line: lines.append(line))
    assert sorted(lines) == [("a", b"60"), ("b", b"600")]


def test_a_long_prompt_is_in_the_record_alone(store: Store, session: Session) -> None:
    spec = AgentSpec(command=("true",), prompt="x" * 200_000)
    workflow = Workflow(agents={"a": spec})
    assert supervise(store, "main", workflow, variables=VARIABLES) == "done"
    assert len(session.state.get("agents/a/current_prompt")) == 200_000


def test_what_cannot_be_supervised(store: Store) -> None:
    with pytest.raises(NotAStore):
        supervise(mulligan.open("memory:"), "main", team(a="exit 0"), variables={})
    needy = Workflow(agents={"a": AgentSpec(command=("true",), pass_env=("NO_SUCH",))})
    with pytest.raises(InvalidWorkflow, match="needs NO_SUCH"):
        supervise(store, "main", needy, variables={})
    assert store.sessions() == []


def test_a_request_without_a_supervisor_is_refused(session: Session) -> None:
    for ask in (request_pause, request_checkpoint):
        with pytest.raises(NotRunning, match="No supervisor runs"):
            ask(session, 1)
    assert session.internal.control() is None


@pytest.mark.parametrize("prompt", ["a\0b", 7, ["x"]], ids=["NUL", "number", "list"])
def test_a_prompt_that_cannot_be_a_variable(store: Store, session: Session, prompt: object) -> None:
    session.internal.state.set("agents/a/current_prompt", prompt)
    pause(session)
    assert supervise(store, "main", team(a="exit 0"), variables=VARIABLES) == "done"
    assert session.state.get("agents/a/current_prompt") == prompt


def test_a_command_that_no_system_can_run(store: Store) -> None:
    workflow = Workflow(agents={"a": AgentSpec(command=("true", "a\0b"), restart="never")})
    assert supervise(store, "main", workflow, variables=VARIABLES) == "failed"


def test_a_supervisor_that_was_replaced_starts_no_agent(store: Store, session: Session) -> None:
    replaced = store.agent("supervisor", session="main")
    workflow = team(a="exit 0")
    members = Team(store, workflow, Records(replaced), VARIABLES, lambda *_: None)
    store.session("main", actor="supervisor").internal.take(30, steal=True)
    store.session("main", actor="a").internal.take(30)
    with pytest.raises(StaleLease):
        members.start("a", 0.0, again=False)
    assert session.internal.lease_of("a").epoch == 1
    assert list(members) == []


def test_a_supervisor_that_is_replaced_at_the_last_moment_takes_no_agents_lease(
    store: Store, session: Session
) -> None:
    replaced = store.agent("supervisor", session="main")

    class Overtaken(Records):
        """Is replaced right after it has written, and with that made sure that it was not."""

        def starting(self, name: str, fields: Mapping[str, Any]) -> None:
            super().starting(name, fields)
            store.session("main", actor="supervisor").internal.take(30, steal=True)

    members = Team(store, team(a="exit 0"), Overtaken(replaced), VARIABLES, lambda *_: None)
    with pytest.raises(StaleLease):
        members.start("a", 0.0, again=False)
    assert session.internal.lease_of("a") is None
    assert list(members) == []


def test_a_request_without_its_signal_is_seen_all_the_same(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor in a thread gets no signals; it must not be ended by one either."""
    monkeypatch.setattr(runner, "HEARTBEAT_POLL_SECONDS", 0.05)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    ended: list[str] = []
    workflow = team(a="exec sleep 1000")
    thread = threading.Thread(
        target=lambda: ended.append(supervise(store, "main", workflow, variables=VARIABLES))
    )
    thread.start()
    while session.state.get("agents/a/process_id", None) is None:
        time.sleep(0.01)
    assert request_pause(session, 0.1).status == "paused"
    thread.join()
    assert ended == ["paused"]


def test_a_session_that_is_being_brought_back_is_not_disturbed(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_START_SECONDS", 0.1)
    handle = store.agent("supervisor", session="main")
    handle.internal.commit_events(
        lambda _: [("orchestrator.started", {"control": [[["status"], "running"]]})]
    )
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with pytest.raises(NotRunning, match="still being recovered"):
            request_pause(session, 0.1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert session.internal.control("request") is None


SILENT = """
import time
import mulligan

session = mulligan.attach()
while session.agent.get()["state"] != "working":
    time.sleep(0.01)
"""


def test_an_agent_that_attached_and_says_nothing_is_taken_to_be_working(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "HEARTBEAT_POLL_SECONDS", 0.05)
    monkeypatch.setattr(team_module, "ASSUME_WORKING_SECONDS", 0.1)
    spec = AgentSpec(command=(sys.executable, "-c", SILENT), restart="never")
    workflow = Workflow(agents={"a": spec})
    assert supervise(store, "main", workflow, variables=VARIABLES) == "done"


MEASURED = """
import mulligan
from mulligan.supervisor.requests import request_checkpoint

session = mulligan.attach()
taken = request_checkpoint(session, limit=0.1).checkpoint
assert session.state.at(taken).get("agents/a/resources")["max_rss_bytes"] > 1_000_000
"""


def test_checkpoints_know_what_running_agents_have_used(store: Store) -> None:
    spec = AgentSpec(command=(sys.executable, "-c", MEASURED), restart="never")
    workflow = Workflow(agents={"a": spec})
    assert supervise(store, "main", workflow, variables=VARIABLES) == "done"
