"""The story: killed, resumed, rolled back, wrecked, forked, a team; every claim is checked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mulligan import Session, Store
from mulligan.cli.demo.agents import APPROVED, LABEL, MAILS, OUTBOX, OUTCOMES, SHARED, STEPS, TASKS
from mulligan.cli.demo.files import COMMAND, make_project, picture

SESSION, BRANCH, TEAM, BEFORE = "demo", "demo-rewrite", "demo-team", "before-cleanup"
AGENT, RUN, JSON = "mulligan.cli.demo.agents", ("mulligan", "--quiet"), ("mulligan", "--json")
PATIENCE = 60.0  # seconds after which the story gives up waiting for a process
ONCE, EACH_ONCE = [1] * len(TASKS), f"each of the {len(TASKS)} tasks was completed exactly once"

KILL_AT = f"conversation/{1 + 2 * len(STEPS)}"
"""The first agent is killed once step 2.0 is in the journal, while it works on the next."""

Process = subprocess.Popen[str]
Told = Iterator[dict[str, Any] | tuple[str, bool] | str]
"""What an act tells: the facts of its chapter, claims and whether they hold, and other lines."""
ACTS: tuple[str, ...] = ("working", "killed", "resumed", "restored", "outside")
ACTS += ("wrecked", "branches", "team", "upkeep", "verified")


class Story:
    """The acts; the docstring of each is the title and the text of its chapter."""

    def __init__(self, store: Store, project: Path, other: Path, start: Callable[..., Process]):
        make_project(project)
        self.store, self.project, self.other, self.start = store, project, other, start
        self.session = store.session(SESSION, actor="demo", workspace=project)
        self.crew = store.session(TEAM, actor="demo")
        goal = {"role": "user", "content": "users are logged out at midnight: fix it"}
        for session in (self.session, self.crew):
            session.state.append("conversation", goal)
            session.tasks.plan(TASKS)

    def working(self) -> Told:
        """An agent at work: A process works on {tasks} tasks; each acknowledged step is durable."""
        yield {"tasks": len(TASKS)}
        self.first = self.start(AGENT, SESSION, "patch")
        wait_for(lambda: self.session.state.get(KILL_AT))

    def killed(self) -> Told:
        """kill -9: Event #{seq} is in the journal: task 3 has started. Process {pid} is killed."""
        process, seq = self.first, self.session.head.seq
        process.kill()
        acknowledged, talk = _printed(process), self.session.state.get("conversation")
        yield {"pid": process.pid, "seq": seq, "acknowledged": len(acknowledged)}
        yield "the kill ended it in the middle of its work", process.returncode == -9
        kept = acknowledged != [] and all(message in talk for message in acknowledged)
        yield f"all {len(acknowledged)} acknowledged steps are in the store, word for word", kept

    def resumed(self) -> Told:
        """A new process resumes: {pid} (epoch {epoch}) continues at task {task}, step {step}."""
        task, step = divmod(self.session.state.length("conversation") - 1, len(STEPS))
        process = self.start(AGENT, SESSION, "patch")
        first, *_ = _printed(process)
        epoch = max(event.epoch for event in self.session.events())
        yield {"pid": process.pid, "task": task + 1, "step": step + 1, "epoch": epoch}
        is_next = first["step"] == f"{task}.{step}" and process.returncode == 0
        yield "it continued where the store said", is_next
        yield EACH_ONCE, sorted(completions(self.session).values()) == ONCE
        yield "the mail sent before the crash was not sent again", self._sent() == MAILS
        taken = [message["step"] for message in self.session.state.get("conversation")[1:]]
        wanted = [f"{n}.{s}" for n in range(len(TASKS)) for s in range(len(STEPS))]
        yield f"all {len(wanted)} steps were taken, in order, none twice", taken == wanted

    def restored(self) -> Told:
        """Roll back: The session returns to checkpoint 'failing-test' (#{to}), as a new event."""
        present = self.session.state.get()
        done = self.session.restore(LABEL, accept_left_behind=True)
        yield {"seq": done.seq, "to": done.point.seq, "safety": done.safety.id}
        now, then = self.session.state.get(), self.session.state.at(LABEL).get()
        yield "the state is exactly what it was there", now == then | {"outside": now["outside"]}
        safe = now != present and self.session.state.at(done.safety).get() == present
        yield "the state before the restore is in the safety checkpoint", safe
        gone = not list(self.project.glob("notes/[4-6].md"))
        yield "the files went back, too: notes of later tasks are gone", gone

    def outside(self) -> Told:
        """The outside world: A mail was sent after that point, and cannot be taken back."""
        left = self.session.state.get("outside")
        yield {"left_behind": list(left)}
        told = [known["name"] for known in left.values()] == ["mail.send"]
        yield "it stays sent, and the state says so", told and self._sent() == MAILS

    def wrecked(self) -> Told:
        """The agent's shell command goes wrong: $ {command}"""
        self.session.checkpoint("pre_operation", "before the agent's command", BEFORE)
        before, state = picture(self.project), self.session.state.get()
        subprocess.run(["/bin/sh", "-c", COMMAND], cwd=self.project, check=False)
        self.session.state.append("conversation", {"role": "tool", "content": f"$ {COMMAND}"})
        wrecked, lost = picture(self.project), len(self.session.files.plan(BEFORE).files)
        yield {"command": COMMAND, "paths": lost}
        is_lost = lost > 0 and not (self.project / "src").exists()
        yield f"{lost} paths are deleted, overwritten, new or of another mode", is_lost
        done = self.session.restore(BEFORE)
        yield {"restored_files": done.files, "safety": done.safety.id}
        back = picture(self.project) == before and not done.problems
        yield "a restore brings all back: every byte, mode, time and symlink", back
        yield "the state came back with them", self.session.state.get() == state
        self.session.undo()
        yield "undo shows the wreck again", picture(self.project) == wrecked
        self.session.redo()
        yield "redo brings everything back once more", picture(self.project) == before

    def branches(self) -> Told:
        """Fork, and compare: One process patches the code, another one rewrites it meanwhile."""
        fork = self.session.fork(LABEL, BRANCH, self.other, pointer=True)
        yield {"sessions": [SESSION, BRANCH]}
        yield "the fork has files of its own, equal", picture(self.other) == picture(self.project)
        both = [self.start(AGENT, SESSION, "patch")]
        both += [self.start(AGENT, BRANCH, "rewrite", place=self.other)]
        ended = all(_printed(process) and process.returncode == 0 for process in both)
        statuses = {task.status for session in (self.session, fork) for task in session.tasks}
        yield "both branches finished all tasks", ended and statuses == {"completed"}
        found = self.session.diff(self.session.head, fork.head)
        for value in found.conversation[1::3]:
            yield f"  ~ {value.place}\n       {value.before} → {value.after}"
        for file in found.files:
            yield f"  ~ {file.path}  {file.old_size} bytes → {file.size} bytes"
        first = min((int(value.path[1]) for value in found.conversation), default=0)
        yield "the branches differ, and only after the fork", first > SHARED * len(STEPS)
        notes = [(place / "notes/4.md").read_text() for place in (self.project, self.other)]
        own = [[outcome[0] in note for outcome in OUTCOMES.values()] for note in notes]
        yield "neither wrote into the other's files", own == [[True, False], [False, True]]
        yield "neither sent a mail again that was sent before", self._sent() == MAILS
        kinds = ("state", "conversation", "files")
        yield {"differences": {kind: len(getattr(found, kind)) for kind in kinds}}

    def team(self) -> Told:
        """A team, and its supervisor killed: One of three, process {agent}, is killed at {task}."""
        task = [task.id for task in self.crew.tasks][SHARED - 1]
        command = json.dumps([sys.executable, "-m", AGENT])
        one = f'{{ command = {command}, backoff = {{ initial = "20ms" }} }}'
        team = (
            f'session = "{TEAM}"\nagents = {{ planner = {one}, coder = {one}, tester = {one} }}\n'
        )
        (self.other / "team.toml").write_text(team)
        first = self.start(*RUN, "up", "team.toml", place=self.other)
        owner = wait_for(lambda: self.crew.tasks.get(task).owner)
        pid = self.crew.state.get(("agents", owner, "process_id"))
        os.kill(pid, signal.SIGKILL)
        yield {"agent": pid, "task": task, "supervisor": first.pid}
        wait_for(lambda: self.crew.tasks.get(task).attempts > 1)
        yield "it was started again, and continued there", self.crew.tasks.get(task).owner == owner
        wait_for(lambda: completions(self.crew).total() >= len(TASKS) // 2)
        first.kill()
        first.wait()
        second = self.start(*RUN, "resume", TEAM, place=self.other)
        self.crew.state.set(APPROVED, True)
        claim = "the supervisor was killed, too; `mulligan resume` brought the team back"
        yield claim, second.wait(PATIENCE) == 0
        yield EACH_ONCE, sorted(completions(self.crew).values()) == ONCE
        written = [(event.actor, event.epoch) for event in self.crew.events()]
        fenced = sorted(written, key=lambda one: one[0]) == sorted(written)
        yield "no process that was replaced wrote anything", fenced

    def upkeep(self) -> Told:
        """Looking after the store: `mulligan prune` runs by itself, `drill` if a team says so."""
        labelled = [self.session.checkpoints.at(label) for label in (LABEL, BEFORE)]
        before = [self.session.state.at(taken).get() for taken in labelled]
        done = json.loads(self.start(*JSON, "prune").communicate()[0])
        drill = json.loads(self.start(*JSON, "drill", "-s", SESSION).communicate()[0])
        count, kept, files = done["removed"], done["kept"], drill["files"]
        yield {"removed": count, "kept": kept, "drilled_files": files}
        ruled = count > 0 and all(one["reason"] for one in done["checkpoints"])
        yield f"prune removes {count} of {count + kept} checkpoints, each by a rule", ruled
        stays = [self.session.state.at(taken).get() for taken in labelled] == before
        stays = stays and self.session.files.plan(BEFORE).point.checkpoint == labelled[1].id
        yield "what labels, forks and undo need is still there", stays
        yield f"a drill restored {files} files, {drill['events']} events", drill["ok"] and files > 0
        claim = f"a recovery takes {drill['recovery_seconds']:.2f} s, and no file would be lost now"
        yield claim, drill["loss"]["paths"] == 0

    def verified(self) -> Told:
        """Verify: {sessions} sessions, {events} events and {objects} objects are all checked."""
        report = self.store.verify()
        yield {name: getattr(report, name) for name in ("sessions", "events", "objects")}
        yield "every hash chain, object and index is sound", report.ok

    def _sent(self) -> list[str]:
        """Return the mails that were sent, by the outside world's own record."""
        lines = (self.project / OUTBOX).read_text().splitlines()
        return [line.partition(":")[0] for line in lines]


def wait_for(look: Callable[[], Any]) -> Any:
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


def _printed(process: Process) -> list[dict[str, Any]]:
    """Wait for an agent's end, and return the messages that it acknowledged."""
    output, _ = process.communicate(timeout=PATIENCE)
    return [json.loads(line) for line in output.splitlines()]
