"""The story: killed, resumed, rolled back, wrecked, forked, a team; every claim is checked."""

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
from mulligan.cli.demo import agents
from mulligan.cli.demo.agents import LABEL, SHARED, STEPS, TASKS
from mulligan.cli.demo.files import COMMAND, make_project, picture
from mulligan.cli.render.terminal import style

SESSION, BRANCH, TEAM, BEFORE = "demo", "demo-rewrite", "demo-team", "before-cleanup"
KILL_AT, HARD_STEP = f"conversation/{1 + 2 * len(STEPS)}", "2.1"
"""The first agent is killed once step 2.0 is in the journal, while it works on the next."""

FACTS = ("killed", "resumed", "restored", "outside", "wrecked", "branches", "team", "upkeep")

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
        self.facts: dict[str, dict[str, Any]] = {name: {} for name in FACTS}
        self._chapters = 0
        self._processes: list[Process] = []

    def tell(self) -> None:
        """Do everything, up to the first act with a check that fails."""
        acts = [self.kill_and_resume, self.roll_back, self.wreck, self.fork, self.team]
        acts += [self.look_after, self.verify]
        try:
            while acts and all(check["ok"] for check in self.checks):
                acts.pop(0)()
        finally:
            if any(process.poll() is None for process in self._processes):
                # Ends hard work, so that a team that is interrupted reaches its safe points soon.
                self.crew.state.set(agents.APPROVED, True)
            for process in self._processes:
                process.terminate()
                process.wait()

    def kill_and_resume(self) -> None:
        """Kill an agent in the middle of a task, and let a new process continue."""
        text = f"A process works on {len(TASKS)} tasks; a step is acknowledged once it is durable."
        self._chapter("An agent at work", text)
        process = self._agent(SESSION, "patch", HARD_STEP)
        wait_for(lambda: self.session.state.get(KILL_AT))
        seq = self.session.head.seq
        process.kill()
        _, *acknowledged = _finish(process)
        count = len(acknowledged)
        self.facts["killed"] = {"pid": process.pid, "seq": seq, "acknowledged": count}
        text = f"Event #{seq} is in the journal: task 3 has started. Process {process.pid} is "
        self._chapter("kill -9", f"{text}killed.")
        self._check("the kill ended it in the middle of its work", process.returncode == -9)
        talk = self.session.state.get("conversation")
        kept = count > 0 and all(message in talk for message in acknowledged)
        self._check(f"all {count} acknowledged steps are in the store, word for word", kept)

        task, step = divmod(len(talk) - 1, len(STEPS))
        process = self._agent(SESSION, "patch")
        start, *continued = _finish(process)
        self.facts["resumed"] = {"pid": process.pid, "task": task + 1, "epoch": start["epoch"]}
        text = f"Process {process.pid} takes the lease (epoch {start['epoch']}) and continues at "
        self._chapter("A new process resumes", f"{text}task {task + 1}, step {step + 1}.")
        first = [message["step"] for message in continued[:1]] == [f"{task}.{step}"]
        self._check("it continued where the store said", first and process.returncode == 0)
        self._check_completions(self.session)
        self._check("the mail sent before the crash was not sent again", self._sent("bug") == 1)
        taken = [message["step"] for message in self.session.state.get("conversation")[1:]]
        wanted = [f"{n}.{s}" for n in range(len(TASKS)) for s in range(len(STEPS))]
        self._check(f"all {len(wanted)} steps were taken, in order, none twice", taken == wanted)

    def roll_back(self) -> None:
        """Restore an earlier checkpoint; the present stays in a safety checkpoint."""
        present = self.session.state.get()
        left = self.session.effects.plan(LABEL).left_behind
        done = self.session.restore(LABEL, accept_left_behind=True)
        self.facts["outside"] = {"left_behind": [effect.id for effect in left]}
        self.facts["restored"] = {"seq": done.seq, "to": done.point.seq, "safety": done.safety.id}
        text = f"The session returns to checkpoint {LABEL!r} (#{done.point.seq}), as a new event."
        self._chapter("Roll back", text)
        now = self.session.state.get()
        then = {**self.session.state.at(LABEL).get(), "outside": now.get("outside")}
        self._check("the state is exactly what it was there", now == then)
        safe = now != present and self.session.state.at(done.safety).get() == present
        self._check("the state before the restore is in the safety checkpoint", safe)
        told = [known["name"] for known in self.session.state.get("outside", {}).values()]
        claim = "the mail after that point stays sent, and the state says so"
        self._check(claim, told == ["mail.send"] and self._sent("release") == 1)
        gone = [path.name for path in self.project.glob("notes/[4-6].md")] == []
        self._check("the files went back, too: notes of later tasks are gone", gone)

    def wreck(self) -> None:
        """Let a shell command wreck the files; restore them, undo that, and redo it."""
        self.session.checkpoint("pre_operation", "before the agent's command", BEFORE)
        before, state = picture(self.project), self.session.state.get()
        subprocess.run(["/bin/sh", "-c", COMMAND], cwd=self.project, check=False)
        self.session.state.append("conversation", {"role": "tool", "content": f"$ {COMMAND}"})
        wrecked, lost = picture(self.project), len(self.session.files.plan(BEFORE).files)
        self._chapter("The agent's shell command goes wrong", f"$ {COMMAND}")
        claim = f"{lost} paths are deleted, overwritten, new or of another mode"
        self._check(claim, lost > 0 and not (self.project / "src").exists())
        done = self.session.restore(BEFORE)
        facts = {"command": COMMAND, "paths": lost, "restored_files": done.files}
        self.facts["wrecked"] = {**facts, "safety": done.safety.id}
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
        is_equal = picture(self.other) == picture(self.project)
        self._check("the fork has a directory of its own, equal to the first", is_equal)
        both = [self._agent(SESSION, "patch"), self._agent(BRANCH, "rewrite")]
        ended = all(_finish(process) and process.returncode == 0 for process in both)
        statuses = {task.status for session in (self.session, fork) for task in session.tasks}
        self._check("both branches finished all tasks", ended and statuses == {"completed"})
        found = self.session.diff(self.session.head, fork.head)
        for value in found.conversation[1::3]:
            self.say(f"     ~ {value.place}")
            self.say(f"       {value.before} → {value.after}")
        for file in found.files:
            self.say(f"     ~ {file.path}  {file.old_size} bytes → {file.size} bytes")
        first = min((int(value.path[1]) for value in found.conversation), default=0)
        self._check("the branches differ, and only after the fork", first > SHARED * len(STEPS))
        notes = [(place / "notes/4.md").read_text() for place in (self.project, self.other)]
        own = [[outcome[0] in note for outcome in agents.OUTCOMES.values()] for note in notes]
        self._check("neither wrote into the other's files", own == [[True, False], [False, True]])
        once = self._sent("bug") == self._sent("release") == 1
        self._check("neither sent a mail again that was sent before", once)
        sizes = {name: len(getattr(found, name)) for name in ("state", "conversation", "files")}
        self.facts["branches"] = {"sessions": [SESSION, BRANCH], "differences": sizes}

    def team(self) -> None:
        """Run a team on one plan; kill an agent, then the supervisor, and resume."""
        task = self.crew.tasks.plan(TASKS)[TASKS.index(agents.HARD_TASK)].id
        command = json.dumps([sys.executable, "-m", "mulligan.cli.demo.agents"])
        settings = f'command = {command}\nbackoff = {{ initial = "20ms" }}\n'
        team = [f"[agents.{name}]\n{settings}" for name in ("planner", "coder", "tester")]
        workflow = self.project.parent / "team.toml"
        workflow.write_text("".join([f'session = "{TEAM}"\n', *team]))
        mulligan = ("mulligan", "-q", "--store", str(self.store.path))
        first = self._start(*mulligan, "up", str(workflow))
        owner = wait_for(lambda: self.crew.tasks.get(task).owner)
        pid = self.crew.state.get(("agents", owner, "process_id"))
        os.kill(pid, signal.SIGKILL)
        text = f"`mulligan up` runs {len(team)} agents on a plan of {len(TASKS)} tasks.\n"
        text += f"One of them, process {pid}, is killed at {task!r}."
        self._chapter("A team, and its supervisor killed", text)
        wait_for(lambda: self.crew.tasks.get(task).attempts > 1)
        again = self.crew.tasks.get(task).owner == owner
        self._check("the supervisor started it again, and it continued there", again)
        wait_for(lambda: completions(self.crew).total() >= len(TASKS) // 2)
        with _uninterrupted():
            first.kill()
            first.wait()
            second = self._start(*mulligan, "resume", TEAM)
        self.crew.state.set(agents.APPROVED, True)
        self.facts["team"] = {"agent": pid, "task": task, "supervisor": first.pid}
        claim = "the supervisor was killed, too; `mulligan resume` brought the team back"
        self._check(claim, second.wait(PATIENCE) == 0)
        self._check_completions(self.crew)
        written = [(event.actor, event.epoch) for event in self.crew.events()]
        fenced = sorted(written, key=lambda one: one[0]) == sorted(written)
        self._check("no process that was replaced wrote anything", fenced)

    def look_after(self) -> None:
        """Prune the store by the default policy, and try out a recovery."""
        labelled = [self.session.checkpoints.at(label) for label in (LABEL, BEFORE)]
        before = [self.session.state.at(taken).get() for taken in labelled]
        text = "`mulligan prune` runs by itself beside agents, `drill` if a team says so."
        self._chapter("Looking after the store", text)
        done = self._command("prune")
        count, kept = done["removed"], done["kept"]
        ruled = count > 0 and all(one["reason"] for one in done["checkpoints"])
        self._check(f"prune removes {count} of {count + kept} checkpoints, each by a rule", ruled)
        stays = [self.session.state.at(taken).get() for taken in labelled] == before
        stays = stays and self.session.files.plan(BEFORE).point.checkpoint == labelled[1].id
        self._check("what labels, forks and undo need is still there", stays)
        drill = self._command("drill", "--session", SESSION)
        claim = f"a drill restored the newest checkpoint: {drill['files']} files"
        is_back = drill["ok"] and drill["files"] > 0
        self._check(f"{claim} and {drill['events']} events compared", is_back)
        claim = f"a recovery takes {drill['recovery_seconds']:.2f} s, and no file would be lost now"
        self._check(claim, drill["loss"]["paths"] == 0)
        self.facts["upkeep"] = {"removed": count, "kept": kept, "drilled_files": drill["files"]}

    def verify(self) -> None:
        """Check the whole store."""
        report = self.store.verify()
        read = f"{report.sessions} sessions, {report.events} events, {report.objects} objects"
        self._chapter("Verify", f"{read}: everything is read and checked.")
        self._check("every hash chain, object and index is sound", report.ok)

    def _sent(self, key: str) -> int:
        """Return how often a mail was sent, by the outside world's own record."""
        lines = agents.outbox(self.project).read_text().splitlines()
        return sum(line.startswith(f"{key}:") for line in lines)

    def _chapter(self, title: str, text: str) -> None:
        self._chapters += 1
        self.say("\n" + style(f"{self._chapters}  {title}", "cyan", bold=True))
        self.say("   " + text.replace("\n", "\n   "))

    def _check(self, claim: str, holds: bool) -> None:
        self.checks.append({"claim": claim, "ok": holds})
        mark, colour = ("✓", "green") if holds else ("✗ not so:", "red")
        self.say(f"   {style(mark, colour, bold=True)} {claim}")

    def _check_completions(self, session: Session) -> None:
        once, claim = {task.id: 1 for task in session.tasks}, "tasks was completed exactly once"
        self._check(f"each of the {len(TASKS)} {claim}", completions(session) == once)

    def _agent(self, session: str, approach: str, *hard_step: str) -> Process:
        directory = self.other if session == BRANCH else self.project
        given = (str(self.store.path), session, str(directory), approach, *hard_step)
        return self._start("mulligan.cli.demo.agents", *given)

    def _command(self, *command: str) -> Any:
        """Run a command in the project, and return its JSON."""
        given = ("mulligan", "--json", "--store", str(self.store.path), *command)
        output, _ = self._start(*given).communicate(timeout=PATIENCE)
        return json.loads(output)

    def _start(self, *module: str) -> Process:
        """Start a process in its own session, where Ctrl-C does not reach it."""
        ends: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
        given = [sys.executable, "-m", *module]
        with _uninterrupted():
            self._processes.append(subprocess.Popen(given, start_new_session=True, **ends))
        return self._processes[-1]


def wait_for(look: Callable[[], Found | None]) -> Found:
    """Wait until a function returns something, and return it."""
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError("the processes of the demo make no progress")
        time.sleep(0.01)
    return found


def completions(session: Session) -> Counter[str]:
    """Return how often each task was completed, by the events of the journal."""
    return Counter(e.payload["task"] for e in session.events() if e.kind == "task.completed")


def _finish(process: Process) -> list[dict[str, Any]]:
    """Wait for an agent's end; return its epoch and then the messages that it acknowledged."""
    output, _ = process.communicate(timeout=PATIENCE)
    return [json.loads(line) for line in output.splitlines()] or [{"epoch": None}]


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Defer Ctrl-C, so that every started process is known and ended."""
    interrupted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if interrupted:
            signal.raise_signal(signal.SIGINT)
