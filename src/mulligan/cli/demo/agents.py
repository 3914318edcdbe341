"""The agents of the demo, as separate processes: ``python -m mulligan.cli.demo.agents``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import mulligan

TASKS: tuple[str, ...] = ("reproduce the bug", "find the cause", "write a failing test")
TASKS += ("fix the code", "run all the tests", "write the changelog")
STEPS = ("think", "act", "check")
SHARED, LABEL = 3, "failing-test"
"""How many tasks come before the fork, and the label of the checkpoint after them."""

OUTCOMES = {
    "patch": ("times compared in UTC, 1 line", "214 passed", "fixed: logout at midnight"),
    "rewrite": ("a new session store, 9 files", "211 passed, 3 failed", "new: session store"),
}
"""The results of the tasks after the fork, by approach."""

WORKING, HARD = 0.03, 15.0
"""Seconds that simulate work; hard work takes long enough to be killed in the middle."""

HARD_TASK, APPROVED = TASKS[2], "context/approved"
"""The task at which an agent is killed, and the path that is set when the team may end."""


def work_alone(place: str, name: str, directory: str, approach: str, hard_step: str = "") -> None:
    """Work until every task is done; a line of JSON acknowledges each step once it is durable."""
    store = mulligan.open(place, create=False)
    with store, store.agent("worker", session=name, workspace=directory) as session:
        session.tasks.plan(TASKS)
        if session.state.get("conversation") is None:
            goal = {"role": "user", "content": "users are logged out at midnight: fix it"}
            session.state.append("conversation", goal)
        mail(session, directory, "bug", "looking into the logouts at midnight")
        lease = session.agent.lease
        print(json.dumps({"epoch": lease and lease.epoch}), flush=True)
        Path(directory, "notes").mkdir(exist_ok=True)
        while (task := session.tasks.claim()) is not None:
            number = TASKS.index(task.title)
            result = OUTCOMES[approach][number - SHARED] if number >= SHARED else task.title
            taken = len(session.state.get("conversation")) - 1 - number * len(STEPS)
            for step in STEPS[taken:]:  # the conversation says which steps are left
                message = {"role": "assistant", "content": f"{step}: {result}"}
                message["step"] = f"{number}.{STEPS.index(step)}"
                time.sleep(HARD if message["step"] == hard_step else WORKING)
                note = Path(directory, "notes", f"{number + 1}.md")
                note.write_text(f"{message['content']}\n")
                with session.batch():
                    session.state.append("conversation", message)
                    if step == STEPS[-1]:
                        session.tasks.complete(task.id, result)
                print(json.dumps(message), flush=True)
            if number == len(TASKS) - 1:
                mail(session, directory, "release", result)
            label = LABEL if number == SHARED - 1 else None
            session.checkpoint("routine", note=f"done: {task.title}", label=label)


def mail(session: mulligan.Session, directory: str, key: str, text: str) -> None:
    """Send a mail once, however often this is called: a line in a file outside of the project."""
    with session.effect("mail.send", intent={"text": text}, key=key) as effect:
        if not effect.settled:
            with outbox(Path(directory)).open("a") as file:
                file.write(f"{key}: {text}\n")


def outbox(project: Path) -> Path:
    """Return the file that stands for the outside world."""
    return project.parent / "outbox.txt"


def work_in_team() -> None:
    """Work until all tasks are done and the team may end; ``mulligan up`` starts this."""
    session = mulligan.attach()
    for cycle in session.loop():
        with cycle, session.tasks.working() as task:
            if task is None:
                if session.state.get(APPROVED) and {t.status for t in session.tasks} == {
                    "completed"
                }:
                    break
                time.sleep(WORKING)
                continue
            is_hard = task.title == HARD_TASK and task.attempts == 1
            until = time.monotonic() + (HARD if is_hard else 4 * WORKING)
            with session.agent.step(task.title, deadline=2 * HARD):
                while time.monotonic() < until and not session.state.get(APPROVED):
                    time.sleep(WORKING)
    session.close()


if __name__ == "__main__":
    work_alone(*sys.argv[1:]) if sys.argv[1:] else work_in_team()
