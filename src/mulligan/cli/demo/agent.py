"""The agent of the demo, a process of its own: ``python -m mulligan.cli.demo.agent``.

It works through a task list and writes down in files what it does. Every step is one
transaction; when it has returned, and so is durable, one line of JSON on standard output
acknowledges it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import mulligan
from mulligan.errors import LeaseHeld

AGENT = "worker"
GOAL = "users are logged out at midnight: find out why, and fix it"
TASKS = (
    "reproduce the bug",
    "find the cause",
    "write a failing test",
    "fix the code",
    "run all the tests",
    "write the changelog",
)
STEPS = ("think", "act", "check")
FORK_AT = 2
"""The task after which there are two ways to go on; its checkpoint has a label."""

LABEL = "failing-test"
THINKING = 0.03
"""Seconds that stand for the model's thinking."""

HARD_THINKING = 15.0
"""And when it has a hard nut to crack: long enough for anybody to kill it meanwhile."""

TTL = 2.0

OUTCOMES = {
    "patch": ("times compared in UTC, 1 line", "214 passed", "fixed: logout at midnight"),
    "rewrite": ("a new session store, 9 files", "211 passed, 3 failed", "new: session store"),
}
"""What becomes of the tasks after the fork, by the way that was chosen."""


def main(
    store_path: str, session_name: str, style: str, directory: str, hard_step: str = ""
) -> None:
    """Work until every task is done."""
    workspace = Path(directory)
    with mulligan.open(store_path, create=False) as store:
        session = _take_over(store, session_name, workspace)
        if session.state.get("plan") is None:
            _prepare(session)
        acknowledge({"started": os.getpid(), "epoch": session.lease and session.lease.epoch})
        while (number := first_incomplete(session.state.get("plan"))) is not None:
            _work_on(session, number, style, workspace, hard_step)
        session.close()


def first_incomplete(tasks: list[dict[str, Any]]) -> int | None:
    """Return the number of the first task that is not done."""
    return next((i for i, task in enumerate(tasks) if task["status"] != "done"), None)


def acknowledge(what: dict[str, Any]) -> None:
    """Tell the parent what is durable from now on."""
    print(json.dumps(what), flush=True)


def note_of(directory: Path, number: int) -> Path:
    """Return the file in which the agent writes down what it does for a task."""
    return directory / "notes" / f"{number + 1}.md"


def _take_over(store: mulligan.Store, name: str, workspace: Path) -> mulligan.Session:
    """Become the one writer; wait where it cannot be seen that the one before is dead."""
    deadline = time.monotonic() + TTL * 2
    while True:
        try:
            return store.agent(AGENT, session=name, ttl=TTL, workspace=workspace)
        except LeaseHeld:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _prepare(session: mulligan.Session) -> None:
    with session.batch():
        session.state.set("context/goal", GOAL)
        session.state.set("memory/session", {})
        session.state.set("conversation", [{"role": "user", "content": GOAL}])
        tasks = [{"title": title, "status": "todo", "steps": 0} for title in TASKS]
        session.state.set("plan", tasks)


def _work_on(
    session: mulligan.Session, number: int, style: str, workspace: Path, hard_step: str
) -> None:
    """Take the steps of a task that have not been taken yet."""
    for step in range(session.state.get(("plan", number, "steps")), len(STEPS)):
        time.sleep(HARD_THINKING if f"{number}.{step}" == hard_step else THINKING)
        message = _message(number, step, style)
        _write_down(workspace, number, step, message["content"])
        _record(session, number, step, message)
        acknowledge({"step": f"{number}.{step}", "message": message})
    label = LABEL if number == FORK_AT else None
    session.checkpoint("routine", note=f"done: {TASKS[number]}", label=label)


def _write_down(workspace: Path, number: int, step: int, said: str) -> None:
    """Write a line of the task's notes; a step that is taken again writes the same line."""
    file = note_of(workspace, number)
    file.parent.mkdir(exist_ok=True)
    lines = file.read_text().splitlines()[:step] if step else []
    file.write_text("\n".join([*lines, said]) + "\n")


def _message(number: int, step: int, style: str) -> dict[str, Any]:
    said = TASKS[number]
    if number > FORK_AT and STEPS[step] != "think":
        said = OUTCOMES[style][number - FORK_AT - 1]
    return {
        "role": "assistant",
        "content": f"{STEPS[step]}: {said}",
        "step": f"{number}.{step}",
    }


def _record(session: mulligan.Session, number: int, step: int, message: dict[str, Any]) -> None:
    """Write everything that a step changes, as one transaction."""
    is_last = step == len(STEPS) - 1
    with session.batch():
        session.state.append("conversation", message)
        session.state.set(("plan", number, "steps"), step + 1)
        session.agent.update(**_about_me(number, step, is_last))
        if is_last:
            session.state.set(("plan", number, "status"), "done")
            session.state.set(("memory", "session", TASKS[number]), message["content"])


def _about_me(number: int, step: int, is_last: bool) -> dict[str, Any]:
    return {
        "process_id": os.getpid(),
        "prompt": GOAL,
        "state": "waiting" if is_last else "working",
        "last_action": STEPS[step],
        "working_on": TASKS[number],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
