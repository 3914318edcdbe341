"""The story of the demo: what happens to real processes and files, and a check of each claim."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from mulligan import Session, Store
from mulligan.cli.demo.agents import APPROVED, LABEL, OUTCOMES, SHARED, STEPS, TASKS, note_of
from mulligan.cli.demo.files import COMMAND, differing, make_project, picture
from mulligan.cli.render.terminal import style

SESSION, BRANCH, TEAM = "demo", "demo-rewrite", "demo-team"
BEFORE = "before-cleanup"
KILL_AT, HARD_STEP = "2.0", "2.1"
"""The first agent is killed once the first step is in the journal, while it works on the next."""

AGENTS = ("planner", "coder", "tester")
PLAN: tuple[str, ...] = ("read the issue", "change the model", "change the queries")
PLAN += ("change the forms", "write unit tests", "run the tests", "measure the queries")
PLAN += ("update the guide", "write the changelog", "prepare the release")
HARD_TASK = PLAN.index("change the queries")
PATIENCE = 60.0
"""Seconds after which the story gives up waiting."""

Process = subprocess.Popen[str]
Found = TypeVar("Found")


class Story:
    """The acts in their order; each adds its facts and its checks."""

    def __init__(self, store: Store, project: Path, other: Path, say: Callable[[str], None]):
        make_project(project)
        self.store, self.project, self.other, self.say = store, project, other, say
        self.session = store.session(SESSION, actor="demo", workspace=project)
        self.crew = store.session(TEAM, actor="demo")
        self.checks: list[dict[str, Any]] = []
        names = ("killed", "resumed", "restored", "wrecked", "branches", "team")
        self.facts: dict[str, dict[str, Any]] = {name: {} for name in names}
        self._chapters = 0
        self._processes: list[Process] = []

    def tell(self) -> None:
        """Do everything, up to the first act with a check that fails."""
        acts = (self.kill_and_resume, self.roll_back, self.wreck, self.fork, self.team, self.verify)
        try:
            for act in acts:
                act()
                if not all(check["ok"] for check in self.checks):
                    break
        finally:
            if any(process.poll() is None for process in self._processes):
                # Ends hard work, so that a team that is interrupted reaches its safe points soon.
                self.crew.state.set(APPROVED, True)
            for process in self._processes:
                process.terminate()
            for process in self._processes:
                process.wait()

    def kill_and_resume(self) -> None:
        """Kill an agent in the middle of a task, and let a new process continue."""
        text = f"A process works on {len(TASKS)} tasks; a step is acknowledged once it is durable."
        self._chapter("An agent at work", text)
        process = self._start_agent(SESSION, "patch", HARD_STEP)
        seq = wait_for(lambda: _seq_of(self.session, KILL_AT))
        process.kill()
        _, *acknowledged = _finish(process)
        count = len(acknowledged)
        self.facts["killed"] = {"pid": process.pid, "seq": seq, "acknowledged": count}
        text = f"Event #{seq} is in the journal: task 3 has begun. Process {process.pid} is killed."
        self._chapter("kill -9", text)
        died = process.returncode == -signal.SIGKILL
        self._check("the kill ended it in the middle of its work", died)
        talk = self.session.state.get("conversation")
        kept = count > 0 and all(message in talk for message in acknowledged)
        self._check(f"all {count} acknowledged steps are in the store, word for word", kept)

        number, step = divmod(len(talk) - 1, len(STEPS))
        process = self._start_agent(SESSION, "patch")
        start, *continued = _finish(process)
        epoch = start["epoch"]
        self.facts["resumed"] = {"pid": process.pid, "task": number + 1, "epoch": epoch}
        text = f"Process {process.pid} takes the lease (epoch {epoch}) and continues at task "
        self._chapter("A new process resumes", f"{text}{number + 1}, step {step + 1}.")
        first = [message["step"] for message in continued[:1]] == [f"{number}.{step}"]
        self._check("it continued where the store said", first and process.returncode == 0)
        self._check_completions(self.session, len(TASKS))
        taken = [message["step"] for message in self.session.state.get("conversation")[1:]]
        wanted = [f"{n}.{s}" for n in range(len(TASKS)) for s in range(len(STEPS))]
        self._check(f"all {len(wanted)} steps were taken, in order, none twice", taken == wanted)
        twice = [message for message in continued if message in acknowledged]
        self._check("no step was acknowledged twice", not twice)

    def roll_back(self) -> None:
        """Restore an earlier checkpoint; the present stays in a safety checkpoint."""
        present = self.session.state.get()
        done = self.session.restore(LABEL)
        self.facts["restored"] = {"seq": done.seq, "to": done.point.seq, "safety": done.safety.id}
        text = f"The session returns to checkpoint {LABEL!r} (#{done.point.seq}), as a new event."
        self._chapter("Roll back", text)
        now = self.session.state.get()
        self._check("the state is exactly what it was there", now == self.session.state_at(LABEL))
        safe = now != present and self.session.state_at(done.safety) == present
        self._check("the state before the restore is in the safety checkpoint", safe)
        noted = [note_of(self.project, number).exists() for number in range(len(TASKS))]
        back = noted == [number < SHARED for number in range(len(TASKS))]
        self._check("the files went back, too: notes of later tasks are gone", back)

    def wreck(self) -> None:
        """Let a shell command wreck the files; restore them, undo that, and redo it."""
        self.session.checkpoint("pre_operation", "before the agent's command", BEFORE)
        before, state = picture(self.project), self.session.state.get()
        subprocess.run(["/bin/sh", "-c", COMMAND], cwd=self.project, check=False)
        self.session.state.append("conversation", {"role": "tool", "content": f"$ {COMMAND}"})
        wrecked = picture(self.project)
        lost = len(differing(before, wrecked))
        self._chapter("The agent's shell command goes wrong", f"$ {COMMAND}")
        claim = f"{lost} of {len(before)} paths are deleted, overwritten or of another mode"
        self._check(claim, lost > 0 and not (self.project / "src").exists())
        done = self.session.restore(BEFORE)
        self.facts["wrecked"] = {"command": COMMAND, "paths": lost, "restored_files": done.files}
        self.facts["wrecked"]["safety"] = done.safety.id
        back = picture(self.project) == before and not done.problems
        self._check("a restore brings all back: every byte, mode, time and symlink", back)
        self._check("the state came back with them", self.session.state.get() == state)
        self.session.undo()
        self._check("undo shows the wreck again", picture(self.project) == wrecked)
        self.session.redo()
        self._check("redo brings everything back once more", picture(self.project) == before)

    def fork(self) -> None:
        """Fork; both branches continue at once in different ways, and are compared."""
        fork = self.session.fork(LABEL, BRANCH, self.other, pointer=True)
        text = f"{SESSION!r} patches the code, {BRANCH!r} rewrites it: two processes at once."
        self._chapter("Fork, and compare", text)
        equal = picture(self.other) == picture(self.project)
        self._check("the fork has a directory of its own, equal to the first", equal)
        both = [self._start_agent(SESSION, "patch"), self._start_agent(BRANCH, "rewrite")]
        ended = all(_finish(process) and process.returncode == 0 for process in both)
        statuses = {task.status for session in (self.session, fork) for task in session.tasks}
        self._check("both branches finished all tasks", ended and statuses == {"completed"})
        found = self.session.diff(self.session.head, fork.head)
        for value in found.conversation[::2]:
            self.say(f"     ~ {value.place}  {value.before} → {value.after}")
        for file in found.files:
            self.say(f"     ~ {file.path}  {file.old_size} bytes → {file.size} bytes")
        places = [int(difference.path[1]) for difference in found.conversation]
        after = bool(places) and min(places) > SHARED * len(STEPS)
        self._check("the branches differ, and only after the fork", after)
        notes = [note_of(at, SHARED).read_text() for at in (self.project, self.other)]
        own = [[outcome[0] in note for outcome in OUTCOMES.values()] for note in notes]
        self._check("neither wrote into the other's files", own == [[True, False], [False, True]])
        sizes = {name: len(getattr(found, name)) for name in ("state", "conversation", "files")}
        self.facts["branches"] = {"sessions": [SESSION, BRANCH], "differences": sizes}

    def team(self) -> None:
        """Run a team on one plan; kill an agent, then the supervisor, and resume."""
        plan = [{"title": t, "data": "hard" if t == PLAN[HARD_TASK] else ""} for t in PLAN]
        task = self.crew.tasks.plan(plan)[HARD_TASK].id
        command = json.dumps([sys.executable, "-m", "mulligan.cli.demo.agents"])
        settings = f'command = {command}\nbackoff = {{ initial = "20ms" }}\n'
        workflow = self.project.parent / "team.toml"
        agents = "".join(f"[agents.{name}]\n{settings}" for name in AGENTS)
        workflow.write_text(f'session = "{TEAM}"\n{agents}')
        first = self._start_mulligan("up", str(workflow))
        owner = wait_for(lambda: self.crew.tasks.get(task).owner)
        pid = self.crew.state.get(("agents", owner, "process_id"))
        os.kill(pid, signal.SIGKILL)
        text = f"`mulligan up` runs {len(AGENTS)} agents on a plan of {len(PLAN)} tasks. One of "
        text += f"them, process {pid}, is killed at {task!r}."
        self._chapter("A team, and its supervisor killed", text)
        wait_for(lambda: self.crew.tasks.get(task).attempts > 1)
        again = self.crew.tasks.get(task).owner == owner
        self._check("the supervisor started it again, and it continued there", again)
        wait_for(lambda: completions(self.crew).total() >= len(PLAN) // 2)
        with _uninterrupted():
            first.kill()
            first.wait()
            second = self._start_mulligan("resume", TEAM)
        self.crew.state.set(APPROVED, True)
        self.facts["team"] = {"agent": pid, "task": task, "supervisor": first.pid}
        claim = "then the supervisor was killed, too, and `mulligan resume` brought the team back"
        self._check(claim, second.wait(PATIENCE) == 0)
        self._check_completions(self.crew, len(PLAN))
        epochs: dict[str, list[int]] = {}
        for event in self.crew.events():
            epochs.setdefault(event.actor, []).append(event.epoch)
        fenced = all(found == sorted(found) for found in epochs.values())
        self._check("no process that was replaced wrote anything", fenced)

    def verify(self) -> None:
        """Check the whole store."""
        report = self.store.verify()
        read = f"{report.sessions} sessions, {report.events} events, {report.objects} objects"
        self._chapter("Verify", f"{read}: everything is read and checked.")
        self._check("every hash chain, object and index is sound", report.ok)

    def _chapter(self, title: str, text: str) -> None:
        self._chapters += 1
        self.say("\n" + style(f"{self._chapters}  {title}", "cyan", bold=True) + f"\n   {text}")

    def _check(self, claim: str, holds: bool) -> None:
        self.checks.append({"claim": claim, "ok": holds})
        mark, colour = ("✓", "green") if holds else ("✗ not so:", "red")
        self.say(f"   {style(mark, colour, bold=True)} {claim}")

    def _check_completions(self, session: Session, count: int) -> None:
        once = {task.id: 1 for task in session.tasks}
        holds = completions(session) == once and len(once) == count
        self._check(f"each of the {count} tasks was completed exactly once", holds)

    def _start_agent(self, session: str, approach: str, *hard_step: str) -> Process:
        directory = self.other if session == BRANCH else self.project
        given = (str(self.store.path), session, str(directory), approach, *hard_step)
        return self._start("mulligan.cli.demo.agents", *given, stdout=subprocess.PIPE)

    def _start_mulligan(self, *arguments: str) -> Process:
        with (self.project.parent / "team.log").open("ab") as log:
            given = ("--store", str(self.store.path), *arguments)
            return self._start("mulligan", *given, stdout=log, stderr=log)

    def _start(self, *module: str, **output: Any) -> Process:
        """Start a process in a session of its own, where Ctrl-C does not reach it."""
        options = {"stdin": subprocess.DEVNULL, "text": True, "start_new_session": True, **output}
        with _uninterrupted():
            self._processes.append(subprocess.Popen([sys.executable, "-m", *module], **options))
        return self._processes[-1]


def wait_for(look: Callable[[], Found | None]) -> Found:
    """Wait until there is something to be seen, and return it."""
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError("the processes of the demo make no progress")
        time.sleep(0.01)
    return found


def completions(session: Session) -> Counter[str]:
    """Return how often each task was completed, by the events of the journal."""
    return Counter(e.payload["task"] for e in session.events() if e.kind == "task.completed")


def _seq_of(session: Session, step: str) -> int | None:
    """Return the event that added the message of a step to the conversation."""
    added = (event for event in session.events() if event.kind == "state.append")
    return next((e.seq for e in added if e.payload["values"][0].get("step") == step), None)


def _finish(process: Process) -> list[dict[str, Any]]:
    """Wait for an agent's end; return its epoch and then the messages that it acknowledged."""
    output, _ = process.communicate(timeout=PATIENCE)
    return [json.loads(line) for line in output.splitlines()] or [{"epoch": None}]


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put Ctrl-C off, so that every process that is started is known, and ended."""
    interrupted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if interrupted:
            signal.raise_signal(signal.SIGINT)
