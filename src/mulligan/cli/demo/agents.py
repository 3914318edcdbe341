"""The agents of the demo, processes of their own: ``python -m mulligan.cli.demo.agents``."""

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
"""Seconds that stand for work. What is hard takes long enough to be killed in the middle."""

TTL = 2.0
APPROVED = "context/approved"
"""Set when the team may end."""


def work_alone(store: str, name: str, directory: str, approach: str, hard_step: str = "") -> None:
    """Work until every task is done; a line of JSON acknowledges each step once it is durable."""
    with mulligan.open(store, create=False) as opened, _take(opened, name, directory) as session:
        session.tasks.plan(TASKS)
        if session.state.get("conversation") is None:
            goal = {"role": "user", "content": "users are logged out at midnight: fix it"}
            session.state.append("conversation", goal)
        print(json.dumps({"epoch": session.lease and session.lease.epoch}), flush=True)
        while (task := session.tasks.claim()) is not None:
            _take_steps(session, task, Path(directory), approach, hard_step)


def work_in_team() -> None:
    """Work until all tasks are done and the team may end; ``mulligan up`` starts this."""
    session = mulligan.attach()
    for cycle in session.loop():
        with cycle:
            task = session.tasks.claim()
            if task is None and session.state.get(APPROVED) and _all_done(session):
                break
            if task is None:
                time.sleep(WORKING)
                continue
            is_hard = task.data == "hard" and task.attempts == 1
            until = time.monotonic() + (HARD if is_hard else 4 * WORKING)
            with session.agent.step(task.title, deadline=2 * HARD):
                while time.monotonic() < until and not session.state.get(APPROVED):
                    time.sleep(WORKING)
            session.tasks.complete(task.id, f"done by {session.actor}")
    session.close()


def note_of(directory: Path, number: int) -> Path:
    """Return the file with the agent's notes on a task."""
    return directory / "notes" / f"{number + 1}.md"


def _all_done(session: mulligan.Session) -> bool:
    return all(task.status == "completed" for task in session.tasks)


def _take(store: mulligan.Store, name: str, directory: str) -> mulligan.Session:
    """Take the agent's lease; a dead holder's lease expires where its death cannot be seen."""
    deadline = time.monotonic() + 2 * TTL
    while True:
        try:
            return store.agent("worker", session=name, ttl=TTL, workspace=directory)
        except mulligan.errors.LeaseHeld:
            if time.monotonic() > deadline:
                raise
            time.sleep(WORKING)


def _take_steps(
    session: mulligan.Session, task: mulligan.Task, directory: Path, approach: str, hard_step: str
) -> None:
    """Take the steps of a task that the conversation does not have yet."""
    number = TASKS.index(task.title)
    result = OUTCOMES[approach][number - SHARED] if number >= SHARED else task.title
    said = [f"{step}: {task.title if step == 'think' else result}" for step in STEPS]
    taken = len(session.state.get("conversation")) - 1
    note = note_of(directory, number)
    note.parent.mkdir(exist_ok=True)
    for step in range(taken - number * len(STEPS), len(STEPS)):
        message = {"role": "assistant", "content": said[step], "step": f"{number}.{step}"}
        time.sleep(HARD if message["step"] == hard_step else WORKING)
        note.write_text("\n".join(said[: step + 1]) + "\n")
        with session.batch():
            session.state.append("conversation", message)
            if step == len(STEPS) - 1:
                session.tasks.complete(task.id, said[step])
        print(json.dumps(message), flush=True)
    label = LABEL if number == SHARED - 1 else None
    session.checkpoint("routine", note=f"done: {task.title}", label=label)


if __name__ == "__main__":
    work_alone(*sys.argv[1:]) if sys.argv[1:] else work_in_team()
