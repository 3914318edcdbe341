"""The story of the demo: what is done with real processes, and the proof of each claim."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mulligan.cli.demo.agent import (
    FORK_AT,
    LABEL,
    OUTCOMES,
    STEPS,
    TASKS,
    first_incomplete,
    note_of,
)
from mulligan.cli.demo.files import COMMAND, Picture, differing, make_project, picture
from mulligan.cli.demo.team import AGENTS, PLAN, Team
from mulligan.cli.render.report import summary
from mulligan.errors import MulliganError

if TYPE_CHECKING:
    from mulligan import Diff, Event, Report, Restored, Session, Store

SESSION = "demo"
BRANCH = "demo-rewrite"
BEFORE = "before-cleanup"
KILL_AT = "2.0"
"""The step whose event, once it is seen in the journal, ends the first process."""

AFTER_KILL = "2.1"
"""The step after it, for which the first process has to think long, and does not live to take."""

PATIENCE = 60.0
"""Seconds after which a process of the story is given up."""


class Narrator(Protocol):
    """Who tells the story while it happens."""

    def chapter(self, title: str, text: str) -> None:
        """Begin a part of the story."""
        ...

    def check(self, claim: str, holds: bool) -> None:
        """Tell the outcome of a check."""
        ...

    def differences(self, diff: Diff) -> None:
        """Show what differs between the branches."""
        ...


@dataclass
class Facts:
    """What happened, for programs."""

    checks: list[dict[str, Any]] = field(default_factory=list)
    killed: dict[str, Any] = field(default_factory=dict)
    resumed: dict[str, Any] = field(default_factory=dict)
    restored: dict[str, Any] = field(default_factory=dict)
    wrecked: dict[str, Any] = field(default_factory=dict)
    branches: dict[str, Any] = field(default_factory=dict)
    team: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every check of the story held."""
        return bool(self.checks) and all(check["ok"] for check in self.checks)


class Agent:
    """An agent process and what it acknowledged."""

    def __init__(
        self, store: Store, session: str, style: str, directory: Path, hard_step: str
    ) -> None:
        command = [sys.executable, "-m", "mulligan.cli.demo.agent"]
        # In a session of its own, so that Ctrl-C reaches the one who tells the story alone.
        self._process = subprocess.Popen(
            [*command, str(store.path), session, style, str(directory), hard_step],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.epoch: int | None = None
        self.steps: dict[str, Any] = {}

    def kill(self) -> None:
        """End it with SIGKILL, whatever it is doing."""
        self._process.kill()

    def end(self) -> None:
        """Make sure that it is gone."""
        self._process.kill()
        self._process.communicate()

    def finish(self) -> int:
        """Wait for its end, read what it acknowledged, and return its exit status."""
        output, _ = self._process.communicate(timeout=PATIENCE)
        for line in output.splitlines():
            self._note(json.loads(line))
        return self._process.returncode

    def _note(self, said: dict[str, Any]) -> None:
        if "step" in said:
            self.steps[said["step"]] = said["message"]
        else:
            self.epoch = said["epoch"]


class Story:
    """The acts in their order; each leaves its facts and its checks."""

    def __init__(self, store: Store, narrator: Narrator, project: Path, other: Path) -> None:
        self.store = store
        self.project = project
        self.other = other
        make_project(project)
        self.session = store.session(SESSION, actor="demo", workspace=project)
        self.narrator = narrator
        self.facts = Facts()
        self._agents: list[Agent] = []
        self._team = Team(store, project.parent)

    def tell(self) -> Facts:
        """Do everything, up to the first act with a check that fails, and return the facts."""
        acts = (
            self.kill_midway,
            self.resume,
            self.roll_back,
            self.wreck,
            self.branch,
            self.team,
            self.verify,
        )
        try:
            for act in acts:
                act()
                if not self.facts.ok:
                    break
        finally:
            for agent in self._agents:
                agent.end()
            self._team.end()
        return self.facts

    def kill_midway(self) -> None:
        """Start an agent and kill it in the middle of a task, seen live in the journal."""
        self.narrator.chapter(
            "An agent at work",
            f"A process works through {len(TASKS)} tasks in a directory of its own; each step is "
            "durable before it is acknowledged.",
        )
        agent = self._start(SESSION, "patch", self.project, hard_step=AFTER_KILL)
        seen = _kill_when_seen(self.session, agent)
        status = agent.finish()
        seq = seen()
        self.facts.killed = {"pid": agent.pid, "seq": seq, "acknowledged": len(agent.steps)}
        self.narrator.chapter(
            "kill -9",
            f"Event #{seq} is seen in the journal: task 3, {TASKS[2]!r}, has begun. "
            f"Process {agent.pid} is killed there.",
        )
        self._check("it died of the kill, in the middle of its work", status == -9 and seq > 0)
        kept = _steps(self.session.state.get("conversation", []))
        lost = [step for step, said in agent.steps.items() if kept.get(step) != said]
        self._check(
            f"all {len(agent.steps)} acknowledged steps are in the store, word for word",
            bool(agent.steps) and not lost,
        )

    def resume(self) -> None:
        """Let a new process go on, and prove that nothing is lost and nothing done twice."""
        tasks = self.session.state.get("plan", [])
        number = first_incomplete(tasks) or 0
        (killed,) = self._agents
        agent = self._start(SESSION, "patch", self.project)
        status = agent.finish()
        self.facts.resumed = {"pid": agent.pid, "task": number + 1, "epoch": agent.epoch}
        self.narrator.chapter(
            "A new process resumes",
            f"Process {agent.pid} takes the lease (epoch {agent.epoch}) and goes on at task "
            f"{number + 1} with step {tasks[number]['steps'] + 1} of {len(STEPS)}.",
        )
        first = next(iter(agent.steps), "")
        self._check(
            "it went on exactly where the store said",
            status == 0 and first == f"{number}.{tasks[number]['steps']}",
        )
        completions = _completions(self.session.events())
        self._check(
            f"each of the {len(TASKS)} tasks was completed exactly once",
            completions == dict.fromkeys(range(len(TASKS)), 1),
        )
        said = [m["step"] for m in self.session.state.get("conversation") if "step" in m]
        wanted = [f"{n}.{s}" for n in range(len(TASKS)) for s in range(len(STEPS))]
        self._check(f"all {len(wanted)} steps were taken, in order, none twice", said == wanted)
        self._check("no step was acknowledged twice", not killed.steps.keys() & agent.steps.keys())

    def roll_back(self) -> None:
        """Bring an earlier state back and prove that the present of before is kept."""
        present = self.session.state.get()
        done: Restored = self.session.restore(LABEL)
        self.facts.restored = {"seq": done.seq, "to": done.point.seq, "safety": done.safety.id}
        self.narrator.chapter(
            "Roll back",
            f"The session goes back to the checkpoint {LABEL!r} (#{done.point.seq}), as a new "
            "event; no history is rewritten.",
        )
        now = self.session.state.get()
        self._check("the state is exactly what it was there", now == self.session.state_at(LABEL))
        self._check(
            "what was there before is kept in the safety checkpoint",
            now != present and self.session.state_at(done.safety) == present,
        )
        noted = [note_of(self.project, n).exists() for n in range(len(TASKS))]
        self._check(
            "so are the files: notes of later tasks are gone, earlier ones are there",
            noted == [n <= FORK_AT for n in range(len(TASKS))],
        )

    def wreck(self) -> None:
        """Let a shell command wreck the files, bring them back, undo that, and redo it."""
        self.session.checkpoint("pre_operation", "before the agent's command", BEFORE)
        before, state = picture(self.project), self.session.state.get()
        self._run_command()
        wrecked = picture(self.project)
        lost = differing(before, wrecked)
        self.narrator.chapter(
            "The agent's shell command goes wrong",
            f"$ {COMMAND}",
        )
        self._check(
            f"{len(lost)} of {len(before)} paths are deleted, overwritten or of another mode",
            bool(lost) and not (self.project / "src").exists(),
        )
        done = self.session.restore(BEFORE)
        self.facts.wrecked = {
            "command": COMMAND,
            "paths": len(lost),
            "restored_files": done.files,
            "safety": done.safety.id,
        }
        back = picture(self.project) == before and not done.problems
        self._check("a restore brings all back: every byte, mode, time and symlink", back)
        self._check("and the state with them, as one", self.session.state.get() == state)
        self._walk(before, wrecked)

    def branch(self) -> None:
        """Fork, let both branches go on at once in different ways, and compare them."""
        fork = self.session.fork(LABEL, BRANCH, self.other, pointer=True)
        self.narrator.chapter(
            "Fork, and compare",
            f"{SESSION!r} patches the code, {BRANCH!r} rewrites it: two processes at once, "
            "from identical state and files, each in its own directory.",
        )
        equal = picture(self.other) == picture(self.project)
        self._check("the fork's directory is equal to the first, and another one", equal)
        agents = [
            self._start(SESSION, "patch", self.project),
            self._start(BRANCH, "rewrite", self.other),
        ]
        statuses = [agent.finish() for agent in agents]
        self._check(
            "both branches finished all tasks", statuses == [0, 0] and _all_done(self, fork)
        )
        found = self.session.diff(self.session.head, fork.head)
        self.narrator.differences(found)
        self._check("the branches differ, and only after the fork", _is_after_fork(found))
        notes = [note_of(at, FORK_AT + 1).read_text() for at in (self.project, self.other)]
        self._check("neither wrote into the other's files", _are_own(notes))
        sizes = {
            "state": len(found.state),
            "conversation": len(found.conversation),
            "files": len(found.files),
        }
        self.facts.branches = {"sessions": [SESSION, BRANCH], "differences": sizes}

    def team(self) -> None:
        """Run three agents on one plan, kill one of them and then the supervisor, and resume."""
        team = self._team
        with _without_interruption():
            team.begin()
        pid, task = team.kill_agent("coder")
        owner = team.wait_for_claim(task, attempts=2)
        self.narrator.chapter(
            "A team, and its supervisor killed",
            f"`mulligan up` runs {len(AGENTS)} agents that share a plan of {len(PLAN)} tasks. "
            f"One of them, process {pid}, is killed at {task!r}.",
        )
        self._check("the supervisor started it again, and it went on there", owner == "coder")
        team.wait_for_completed(len(PLAN) // 2)
        supervisor = team.kill_supervisor()
        with _without_interruption():
            team.resume()
        team.approve()
        status = team.finish()
        done = team.completed()
        self.facts.team = {"agent": pid, "task": task, "supervisor": supervisor}
        self._check(
            "then the supervisor was killed, too, and `mulligan resume` brought the team back",
            status == 0,
        )
        self._check(
            f"each of the {len(PLAN)} tasks was completed exactly once",
            len(done) == len(PLAN) and set(done.values()) == {1},
        )
        self._check("no process that was replaced wrote anything", team.writers())

    def verify(self) -> None:
        """Check the whole store."""
        report: Report = self.store.verify()
        self.narrator.chapter(
            "Verify",
            f"{summary(report)}: everything is read and checked.",
        )
        self._check("every hash chain, object and index is sound", report.ok)

    def _run_command(self) -> None:
        """Do what an agent does with a shell, and write it down as the agent would."""
        shell = shutil.which("sh") or "/bin/sh"
        done = subprocess.run([shell, "-c", COMMAND], cwd=self.project, check=False)
        said = {"role": "tool", "content": f"$ {COMMAND}", "status": done.returncode}
        self.session.state.append("conversation", said)

    def _walk(self, before: Picture, wrecked: Picture) -> None:
        """Undo the restore and redo it; nothing that ever was is lost on the way."""
        self.session.undo()
        self._check("undo shows the wreck again", picture(self.project) == wrecked)
        self.session.redo()
        self._check("redo brings everything back once more", picture(self.project) == before)

    def _start(self, session: str, style: str, directory: Path, hard_step: str = "") -> Agent:
        with _without_interruption():
            agent = Agent(self.store, session, style, directory, hard_step)
            self._agents.append(agent)
        return agent

    def _check(self, claim: str, holds: bool) -> None:
        self.facts.checks.append({"claim": claim, "ok": holds})
        self.narrator.check(claim, holds)


@contextlib.contextmanager
def _without_interruption() -> Iterator[None]:
    """Put Ctrl-C off, so that no process is started that nobody knows of."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kill_when_seen(session: Session, agent: Agent) -> Callable[[], int]:
    """Follow the journal live and kill the agent at a step; return how to learn the event's seq."""
    seen: list[int] = []

    def watch() -> None:
        # The store is closed under its feet when the story ends before the event comes.
        with contextlib.suppress(MulliganError):
            for event in session.events(follow=True):
                if _step(event) == KILL_AT:
                    agent.kill()
                    seen.append(event.seq)
                    return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()

    def result() -> int:
        watcher.join(1.0)
        return seen[0] if seen else 0

    return result


def _step(event: Event) -> str | None:
    """Return the step whose message an event adds to the conversation."""
    if event.kind != "state.append" or event.payload["path"] != ["conversation"]:
        return None
    step: str | None = event.payload["values"][0].get("step")
    return step


def _steps(conversation: list[dict[str, Any]]) -> dict[str, Any]:
    return {message["step"]: message for message in conversation if "step" in message}


def _completions(events: Iterable[Event]) -> dict[int, int]:
    """Return how often each task was completed, by the events of the journal."""
    return dict(Counter(e.payload["path"][1] for e in events if _is_completion(e)))


def _is_completion(event: Event) -> bool:
    if event.kind != "state.set" or event.payload["value"] != "done":
        return False
    path = event.payload["path"]
    return len(path) == 3 and path[0] == "plan" and path[2] == "status"


def _all_done(story: Story, fork: Session) -> bool:
    sessions = (story.session, fork)
    return all(first_incomplete(session.state.get("plan")) is None for session in sessions)


def _are_own(notes: list[str]) -> bool:
    """Whether each branch noted what it did itself, by the words of its own way."""
    ways = [OUTCOMES[style][0] for style in ("patch", "rewrite")]
    found = [[way in note for way in ways] for note in notes]
    return found == [[True, False], [False, True]]


def _is_after_fork(found: Diff) -> bool:
    """Whether messages differ, and none of those from before the fork."""
    shared = 1 + (FORK_AT + 1) * len(STEPS)
    talk = [d.path[1] for d in found.conversation if len(d.path) > 1]
    return bool(talk) and all(isinstance(i, int) and i >= shared for i in talk)
