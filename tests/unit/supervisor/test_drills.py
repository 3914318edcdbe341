"""Drills of a team: the keys of a workflow, the commands that follow, and when one is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from mulligan import Finding, Report, Session, Store
from mulligan.document.values import freeze
from mulligan.errors import InvalidWorkflow
from mulligan.redact import HIDDEN
from mulligan.supervisor import drill_session, schedule
from mulligan.supervisor.drills import team_drill, team_workspace
from mulligan.supervisor.preflight import preflight
from mulligan.supervisor.process import Ending
from mulligan.supervisor.schedule import DrillSchedule, Schedule, VerifySchedule
from mulligan.supervisor.workflow import AgentSpec, DrillSettings, Workflow, from_plain, parse
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store
from mulligan.upkeep import run_drill
from mulligan.upkeep.verify.record import record_report
from mulligan.upkeep.verify.settings import VerifySettings

DAY = 86400.0


def record_team(session: Session, workflow: Workflow) -> None:
    session.internal.state.set("orchestrator/workflow", freeze(workflow.to_plain()))


# --- the workflow ----------------------------------------------------------------------------


def test_the_keys_of_a_drill(tmp_path: Path) -> None:
    text = '[drill]\nevery = "1d"\ntimeout = "5m"\n[agents.a]\ncommand = "x"\ndrill = "x --dry"'
    workflow = parse(text, tmp_path / "team.toml")
    assert workflow.drill == DrillSettings(DAY, 300.0)
    assert workflow.agents["a"].drill == ("x", "--dry")
    assert from_plain(workflow.to_plain()) == workflow


def test_without_the_keys_no_drill_is_scheduled(tmp_path: Path) -> None:
    workflow = parse('[agents.a]\ncommand = "x"', tmp_path / "team.toml")
    assert workflow.drill == DrillSettings(None, 60.0)
    plain = workflow.to_plain()
    del plain["drill"], plain["agents"]["a"]["drill"]  # as an earlier version recorded it
    assert from_plain(plain) == workflow


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[drill]\nevery = "often"\n', "2: drill.every: "),
        ("[drill]\nevery = 0\n", "2: drill.every: "),
        ('[drill]\ninterval = "1d"\n', "2: drill.interval: there is no such key"),
        ('drill = "1d"\n', "1: drill: this is a table"),
    ],
)
def test_a_wrong_key_is_named(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(InvalidWorkflow) as caught:
        parse(f'{text}[agents.a]\ncommand = "x"', tmp_path / "team.toml")
    assert f"team.toml:{key}" in str(caught.value)


@pytest.mark.parametrize("key", ["again", "health", "drill"])
def test_a_command_for_later_that_is_not_there_is_found_before_the_start(
    tmp_path: Path, key: str
) -> None:
    file = tmp_path / "team.toml"
    file.write_text(f'[agents.a]\ncommand = "true"\n{key} = "no-such-program"')
    with pytest.raises(InvalidWorkflow, match=rf":3: agents.a.{key}: there is no program"):
        preflight(parse(file.read_text(), file), file, {"PATH": "/usr/bin:/bin"})


def test_a_drill_command_with_a_secret_is_left_out_when_resumed() -> None:
    spec = AgentSpec(command=("agent",), drill=("dry", "--password", "x"), health=("ok",))
    plain = Workflow(agents={"a": spec}).to_plain()
    assert plain["agents"]["a"]["drill"] == ["dry", "--password", HIDDEN]
    agent = from_plain(plain).agents["a"]
    assert (agent.drill, agent.health) == (None, ("ok",))


# --- the commands ----------------------------------------------------------------------------


def test_a_session_without_a_team_runs_nothing(store: Store) -> None:
    session = store.session("run")
    assert team_drill(session, session.head).commands == ()
    assert team_workspace(session) is None


def test_all_dry_starts_come_before_all_health_commands(store: Store, work: Path) -> None:
    session = store.session("run")
    agents = {
        "a": AgentSpec(command=("a",), drill=("a", "--dry"), health=("check",), env={"X": "1"}),
        "b": AgentSpec(command=("b",), drill=("b", "--dry"), directory=str(work / "src")),
        "c": AgentSpec(command=("c",), health=("check",), directory="/elsewhere"),
    }
    record_team(
        session, Workflow(agents=agents, workspace=str(work), drill=DrillSettings(None, 9.0))
    )
    found = team_drill(session, session.head)
    assert [(made.agent, made.kind, made.directory) for made in found.commands] == [
        ("a", "drill", ""),
        ("b", "drill", "src"),
        ("a", "health", ""),
        ("c", "health", ""),
    ]
    assert found.commands[0].env == {"X": "1"}
    assert (found.timeout, found.problems) == (9.0, ())
    assert team_workspace(session) == work
    work.rmdir()
    assert team_workspace(session) is None


def test_the_team_is_that_of_the_point(store: Store) -> None:
    session = store.session("run")
    session.checkpoint(label="before")
    record_team(session, Workflow(agents={"a": AgentSpec(command=("a",), health=("one",))}))
    session.checkpoint(label="first")
    record_team(session, Workflow(agents={"a": AgentSpec(command=("a",), health=("two",))}))
    names = [team_drill(session, session.point(p)).commands[0].command for p in ("first", "before")]
    assert names == [("one",), ("two",)]


def test_a_team_that_cannot_be_read_fails_the_drill(store: Store) -> None:
    session = store.session("run")
    session.internal.state.set("orchestrator/workflow", {"agents": {"a": {"command": 3}}})
    session.checkpoint()
    result = drill_session(session, variables={})
    assert [(p.what, p.where) for p in result.problems] == [("team", "orchestrator/workflow")]


# --- the schedule ----------------------------------------------------------------------------


class Started:
    """Stands for the process of a drill."""

    is_gone = False

    def __init__(self) -> None:
        self.signals: list[int] = []
        self.on_signal: Callable[[], None] = lambda: None

    def kill(self, number: int) -> None:
        self.signals.append(number)
        self.on_signal()


class Bench:
    """A schedule whose processes are not real."""

    def __init__(
        self,
        session: Session,
        every: float | None,
        patch: pytest.MonkeyPatch,
        verify: VerifySettings | None = None,
    ) -> None:
        self.said: list[str] = []
        self.started: list[Started] = []
        self.commands: list[list[str]] = []
        self.woken = 0
        patch.setattr(schedule, "start", self._start)
        agents = {"a": AgentSpec(command=("a",))}
        workflow = Workflow(
            agents=agents, workspace="/w", drill=DrillSettings(every), verify=verify
        )
        beside = (workflow, session, "/store", {}, self._wake, self.said.append)
        self.schedule: Schedule = DrillSchedule(*beside)
        if verify is not None:
            self.schedule = VerifySchedule(*beside, VerifySettings(every=None))

    def _wake(self) -> None:
        self.woken += 1

    def _start(
        self,
        command: list[str],
        directory: Path | None,
        variables: dict[str, str],
        gone: Callable[[Ending], None],
        show: Callable[[bytes], None],
    ) -> Started:
        self.commands.append(command)
        self.gone, self.show = gone, show
        self.started.append(Started())
        return self.started[-1]

    def end(self, status: int) -> None:
        self.started[-1].is_gone = True
        self.gone(Ending(status, {}))


@pytest.fixture
def timed(tmp_path: Path, clock: FakeClock) -> Session:
    session = open_store(tmp_path / "timed", clock=clock).session("run")
    session.checkpoint()
    return session


def test_nothing_is_started_without_a_schedule(
    timed: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(timed, None, monkeypatch)
    bench.schedule.look(1e9)
    assert bench.started == []


def test_the_first_drill_is_due_at_once_and_the_next_after_the_interval(
    timed: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(timed, DAY, monkeypatch)
    bench.schedule.look(100.0)
    bench.schedule.look(100.0 + 2 * DAY)
    assert len(bench.started) == 1  # one at a time
    assert bench.commands[0][1:5] == ["-m", "mulligan", "drill", "--background"]
    run_drill(timed)
    bench.end(0)
    assert bench.woken == 1
    bench.schedule.look(100.0 + 2 * DAY)
    assert bench.said == ["the drill passed: a recovery takes 0.0 s"]
    assert len(bench.started) == 2


def test_a_drill_before_counts(
    timed: Session, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_drill(timed)
    clock.advance(DAY / 2)
    bench = Bench(timed, DAY, monkeypatch)
    bench.schedule.look(0.0)
    bench.schedule.look(DAY / 2 - 1)
    assert bench.started == []
    bench.schedule.look(DAY / 2)
    assert len(bench.started) == 1


def test_a_drill_from_the_future_does_not_count(
    timed: Session, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.advance(10 * DAY)
    run_drill(timed)
    clock.set(timed.created)
    bench = Bench(timed, DAY, monkeypatch)
    bench.schedule.look(0.0)
    assert len(bench.started) == 1


def test_a_failure_is_said_loudly(timed: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(timed, DAY, monkeypatch)
    bench.schedule.look(0.0)
    timed.internal.state.set("orchestrator/workflow", {"agents": 3})
    drill_session(timed, timed.head, variables={})
    bench.end(102)
    bench.schedule.look(1.0)
    (said,) = bench.said
    assert said.startswith("THE DRILL FAILED: team orchestrator/workflow: ")


@pytest.mark.parametrize(
    ("lines", "status", "why"),
    [
        ([b"Error: There is no space left.", b"Hint: x"], 15, "There is no space left."),
        ([], -9, "exit status -9"),
    ],
)
def test_a_drill_that_was_not_completed_is_said_too(
    timed: Session, monkeypatch: pytest.MonkeyPatch, lines: list[bytes], status: int, why: str
) -> None:
    bench = Bench(timed, DAY, monkeypatch)
    bench.schedule.look(0.0)
    for line in lines:
        bench.show(line)
    bench.end(status)
    bench.schedule.look(1.0)
    assert bench.said == [f"THE DRILL WAS NOT COMPLETED: {why}"]
    bench.schedule.look(2.0)
    assert len(bench.started) == 1  # not again before the next one is due


def test_a_process_that_cannot_be_started(timed: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    bench = Bench(timed, DAY, monkeypatch)
    monkeypatch.setattr(schedule, "start", refuse)
    bench.schedule.look(0.0)
    assert bench.said == ["NO DRILL WAS RUN: Resource temporarily unavailable"]
    monkeypatch.setattr(schedule, "is_possible", lambda: False)
    bench.schedule.look(DAY)
    assert "no Python interpreter" in bench.said[1]


@pytest.mark.parametrize(("obeys", "signals"), [(True, [2]), (False, [2, 9])])
def test_a_drill_is_ended_with_its_team(
    timed: Session, monkeypatch: pytest.MonkeyPatch, obeys: bool, signals: list[int]
) -> None:
    monkeypatch.setattr(schedule, "STOP_SECONDS", 60.0 if obeys else 0.0)
    bench = Bench(timed, DAY, monkeypatch)

    async def run() -> None:
        await bench.schedule.stop()  # nothing runs yet
        bench.schedule.look(0.0)
        if obeys:
            bench.started[0].on_signal = lambda: bench.end(130)
        await bench.schedule.stop()

    asyncio.run(run())
    assert bench.started[0].signals == signals


def test_a_check_is_due_after_a_while_and_silent_when_all_is_well(
    timed: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(timed, None, monkeypatch, VerifySettings(every=DAY))
    bench.schedule.look(0.0)
    bench.schedule.look(599.0)
    assert bench.started == []  # most runs are short
    bench.schedule.look(600.0)
    [command] = bench.commands
    assert command[1:5] == ["-m", "mulligan", "verify", "--background"]
    assert command[-2:] == ["--session", "run"]
    bench.end(0)
    bench.schedule.look(601.0)
    bench.schedule.look(600.0 + DAY)
    assert bench.said == []
    assert len(bench.started) == 2


def test_damage_that_a_check_found_is_said_loudly(
    timed: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(timed, None, monkeypatch, VerifySettings(every=1.0))
    bench.schedule.look(0.0)
    bench.schedule.look(1.0)
    bench.end(60)
    bench.schedule.look(1.5)
    assert bench.said.pop() == (
        "VERIFY FOUND DAMAGE and could not record it; `mulligan verify --full` lists it"
    )
    bench.schedule.look(2.0)
    problem = Finding("pack", "00000001.pack", "it is missing", fault="pack", area=1)
    report = Report(True, 1, 1, 1, 1, 1, 1, 0, (problem,))
    record_report(timed, report, 1.0)
    bench.end(60)
    bench.schedule.look(2.5)
    [said] = bench.said
    assert said.startswith("VERIFY FOUND DAMAGE: pack 00000001.pack: it is missing;")
