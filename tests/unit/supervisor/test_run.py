"""Running and resuming through the library alone: agents are processes, the caller is a program."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import mulligan
from mulligan import Session, Store, procfs
from mulligan.errors import InvalidWorkflow, LeaseHeld, StillRunning
from mulligan.recovery.plan import ResumePlan, attempts
from mulligan.recovery.resume import Resumed
from mulligan.recovery.watch import Notice, RecoveryWatch
from mulligan.store import LEASE_TTL
from mulligan.supervisor.lease import SupervisorLease
from mulligan.supervisor.run import (
    ResumeChoice,
    ResumeThread,
    RunOptions,
    RunReporter,
    load_team,
    preview_resume,
    resume_session,
    run_team,
)
from mulligan.supervisor.workflow import AgentSpec, Backoff, Workflow

VARIABLES = {name: value for name, value in os.environ.items() if "MULLIGAN" not in name}

AGENT = """
import mulligan

session = mulligan.attach()
session.tasks.plan(["one", "two", "three"])
while task := session.tasks.claim():
    session.tasks.complete(task.id)
"""

POISONED = """
import mulligan

session = mulligan.attach()
session.tasks.plan(["one", "two", "three"])
while task := session.tasks.claim():
    if task.id == "two":
        raise SystemExit(1)
    session.tasks.complete(task.id)
"""

DEADLY = """
import os, signal, time
import mulligan

session = mulligan.attach()
session.tasks.plan(["one", "two", "three"])
task = session.tasks.claim()
session.tasks.complete(task.id)
if task.id == "one":
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)                     # an orphan process from now on
while task := session.tasks.claim():
    session.tasks.complete(task.id)
"""
"""Ends the supervisor of its first process; its second one does the work."""

SUPERVISOR = """
import os, sys
import mulligan
from mulligan.supervisor.run import RunOptions, run_team
from mulligan.supervisor.workflow import AgentSpec, Workflow

spec = AgentSpec(command=(sys.executable, "-c", sys.argv[2]))
with mulligan.open(sys.argv[1]) as store:
    run_team(store, "main", Workflow(agents={"ada": spec}), RunOptions(variables=os.environ))
"""


class Watching(RunReporter):
    """Keeps what is reported, and looks at the lease each time."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self.stages: list[str] = []
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self._look()
        self.lines.append(line)

    def found(self, plan: ResumePlan) -> None:
        self._look()
        self.stages.append("found")

    def planned(self, plan: ResumePlan) -> None:
        self._look()
        self.stages.append("planned")

    def prepared(self, resumed: Resumed) -> None:
        self._look()
        self.stages.append("prepared")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return mulligan.open(tmp_path)


@pytest.fixture
def options() -> RunOptions:
    return RunOptions(variables=VARIABLES)


@pytest.fixture
def interrupted(store: Store) -> Iterator[Session]:
    """A session whose supervisor, a process of the library, was killed by its agent."""
    program = [sys.executable, "-c", SUPERVISOR, str(store.path), DEADLY]
    ended = subprocess.run(program, env=VARIABLES, check=False)
    assert ended.returncode == -9
    session = store.session("main", create=False)
    orphan = session.state.get("agents/ada/process_id")
    started = procfs.started(orphan)
    yield session
    # Where nothing resumed the session, nothing has ended it.
    if started is not None and procfs.started(orphan) == started:
        os.kill(orphan, signal.SIGKILL)


def workflow(agent: str) -> Workflow:
    spec = AgentSpec(command=(sys.executable, "-c", agent), restart="never")
    return Workflow(agents={"ada": spec})


def completed(session: Session) -> list[str]:
    return [e.payload["task"] for e in session.events() if e.kind == "task.completed"]


def test_run(store: Store, options: RunOptions) -> None:
    outcome = run_team(store, "main", workflow(AGENT), options)
    session = store.session("main", create=False)
    assert (outcome.session, outcome.status, outcome.resumed) == ("main", "done", None)
    assert completed(session) == ["one", "two", "three"]
    assert not session.internal.is_held("supervisor")


def test_up(store: Store, options: RunOptions, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    file = tmp_path / "team.toml"
    file.write_text(
        f'session = "nightly"\n[agents.ada]\ncommand = ["{sys.executable}", "agent.py"]\n'
        f'directory = "{tmp_path}"\n'
    )
    team = load_team(file, VARIABLES)
    assert run_team(store, team.session, team, options).status == "done"
    assert completed(store.session("nightly", create=False)) == ["one", "two", "three"]


def test_a_team_that_cannot_be_run_is_refused_before_anything_is_written(
    store: Store, options: RunOptions, tmp_path: Path
) -> None:
    file = tmp_path / "team.toml"
    file.write_text('[agents.ada]\ncommand = ["no-such-program"]\n')
    with pytest.raises(InvalidWorkflow, match="no-such-program"):
        load_team(file, VARIABLES)
    needy = Workflow(agents={"ada": AgentSpec(command=("true",), pass_env=("NO_SUCH",))})
    with pytest.raises(InvalidWorkflow, match="NO_SUCH"):
        run_team(store, "main", needy, options)
    assert store.sessions() == []


def test_resume(store: Store, interrupted: Session, options: RunOptions) -> None:
    planned = preview_resume(store, "main", ResumeChoice(), options)
    assert planned.next_task == "two"
    assert attempts(interrupted) == []
    outcome = resume_session(store, "main", ResumeChoice(), options)
    assert outcome.run is not None
    assert outcome.run.status == "done"
    assert completed(interrupted) == ["one", "two", "three"]
    assert [attempt.outcome for attempt in attempts(interrupted)] == ["ok"]


def test_run_brings_an_interrupted_session_back_first(
    store: Store, interrupted: Session, options: RunOptions
) -> None:
    outcome = run_team(store, "main", workflow(AGENT), options)
    assert outcome.status == "done"
    assert outcome.resumed is not None
    assert outcome.resumed.checkpoint.kind == "recovery"
    assert completed(interrupted) == ["one", "two", "three"]


def test_a_task_in_quarantine_is_part_of_the_outcome(store: Store, options: RunOptions) -> None:
    spec = AgentSpec(
        command=(sys.executable, "-c", POISONED), quarantine_after=1, backoff=Backoff(initial=0.01)
    )
    outcome = run_team(store, "main", Workflow(agents={"ada": spec}), options)
    assert outcome.status == "done"
    assert outcome.quarantined == ("two",)


@pytest.mark.parametrize("call", ["run", "resume"])
def test_the_lease_is_taken_once_and_never_free_until_the_end(
    store: Store, interrupted: Session, call: str
) -> None:
    before = interrupted.internal.lease_of("supervisor")

    def look() -> None:
        with pytest.raises(LeaseHeld):
            store.agent("supervisor", session="main")

    reporter = Watching(look)
    options = RunOptions(variables=VARIABLES, reporter=reporter)
    if call == "run":
        run_team(store, "main", workflow(AGENT), options)
        assert reporter.stages == ["found", "planned"]
    else:
        resume_session(store, "main", ResumeChoice(), options)
        assert reporter.stages == ["found", "planned", "prepared"]
    assert any("of an earlier supervisor" in line for line in reporter.lines)
    after = interrupted.internal.lease_of("supervisor")
    assert before is not None
    assert after is not None
    # Every take raises the epoch: one more means that it was never released and taken again.
    assert after.epoch == before.epoch + 1
    assert after.released


def test_a_session_that_is_being_run(store: Store, options: RunOptions) -> None:
    store.agent("supervisor", session="main")
    with pytest.raises(LeaseHeld, match="Another supervisor"):
        run_team(store, "main", workflow(AGENT), options)
    with pytest.raises(StillRunning):
        resume_session(store, "main", ResumeChoice(), options)


def test_an_error_while_preparing_releases_the_lease(store: Store, interrupted: Session) -> None:
    class Failing(RunReporter):
        def planned(self, plan: ResumePlan) -> None:
            raise ZeroDivisionError

    options = RunOptions(variables=VARIABLES, reporter=Failing())
    with pytest.raises(ZeroDivisionError):
        resume_session(store, "main", ResumeChoice(), options)
    assert not interrupted.internal.is_held("supervisor")


def test_resume_and_watch(store: Store, interrupted: Session, options: RunOptions) -> None:
    started: list[ResumeThread] = []
    notices: list[Notice] = []
    stop = threading.Event()

    def start(name: str, rung: str) -> ResumeThread:
        started.append(ResumeThread(store, name, rung, options))
        return started[-1]

    def notice(found: Notice) -> None:
        notices.append(found)
        stop.set()

    RecoveryWatch(store, start).run(notice, stop)
    [thread] = started
    thread.join()
    assert [(one.session, one.what, one.rung) for one in notices] == [("main", "started", "retry")]
    assert (thread.poll(), thread.error) == (0, None)
    assert completed(interrupted) == ["one", "two", "three"]
    assert not interrupted.internal.is_held("supervisor")


def test_a_resume_thread_leaves_a_session_alone_that_was_resumed_meanwhile(
    store: Store, interrupted: Session, options: RunOptions
) -> None:
    resume_session(store, "main", ResumeChoice(), options)
    before = interrupted.head.seq
    thread = ResumeThread(store, "main", "retry", options)
    thread.join()
    assert (thread.poll(), thread.error, thread.outcome) == (0, None, None)
    assert interrupted.head.seq == before


def test_a_resume_thread_keeps_the_error_that_ended_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken_meanwhile(session: Session) -> bool:
        store.agent("supervisor", session=session.name)
        return True

    store.session("main")
    monkeypatch.setattr("mulligan.supervisor.run.is_due", taken_meanwhile)
    reporter = Watching(lambda: None)
    options = RunOptions(variables=VARIABLES, reporter=reporter)
    thread = ResumeThread(store, "main", "retry", options)
    thread.join()
    assert isinstance(thread.error, StillRunning)
    assert thread.poll() == StillRunning.exit_code
    assert reporter.lines[0].startswith("main was not resumed: ")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_resume_thread_that_ends_by_any_other_error_has_failed(
    store: Store, interrupted: Session, options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no more threads")

    monkeypatch.setattr("mulligan.supervisor.run.resume_session", fail)
    thread = ResumeThread(store, "main", "retry", options)
    thread.join()
    assert (thread.poll(), thread.error, thread.outcome) == (1, None, None)


SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.mark.parametrize("fails", [False, True], ids=["done", "refused"])
def test_the_signal_handlers_of_the_program_are_back_after_a_run(
    store: Store, options: RunOptions, fails: bool
) -> None:
    def own(number: int, frame: object) -> None:
        """A handler of the program around the run."""

    read, write = socket.socketpair()
    write.setblocking(False)
    before = [signal.signal(number, own) for number in SIGNALS]
    wakeup = signal.set_wakeup_fd(write.fileno())
    try:
        if fails:
            store.agent("supervisor", session="main")
            with pytest.raises(LeaseHeld):
                run_team(store, "main", workflow(AGENT), options)
        else:
            assert run_team(store, "main", workflow(AGENT), options).status == "done"
        found = [signal.getsignal(number) for number in SIGNALS]
        found_wakeup = signal.set_wakeup_fd(wakeup)
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
    assert found == [own] * len(SIGNALS)
    assert found_wakeup == write.fileno()
    read.close()
    write.close()


def test_the_default_of_a_signal_is_back_after_a_run(store: Store, options: RunOptions) -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    try:
        run_team(store, "main", workflow(AGENT), options)
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_every_handle_of_a_run_has_the_usual_lease_once_it_is_shortened(
    store: Store, tmp_path: Path
) -> None:
    store.session("main")
    work = tmp_path / "work"
    work.mkdir()
    with SupervisorLease(store, "main") as lease, lease.files(work, force=True) as handle:
        lease.shorten()
        handle.internal.renew()
        found = handle.internal.lease_of("supervisor")
        assert found is not None
        left = found.expires - handle.internal.lease_time()
        assert left <= timedelta(seconds=LEASE_TTL)
