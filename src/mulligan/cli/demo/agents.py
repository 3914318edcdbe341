"""The agents of the demo, as separate processes: ``python -m mulligan.cli.demo.agents``."""

from __future__ import annotations

import json
import os
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
HARD_STEP, HARD, WORKING = "2.1", 15.0, 0.03
"""Seconds of simulated work: the first try of the hard step is killed in the middle."""
APPROVED, OUTBOX, MAILS = "context/approved", Path("../outbox.txt"), ["bug", "release"]
"""The path that is set when a team may end; the outside world; what is sent there, once each."""


def work_alone(name: str, approach: str) -> None:
    """Work on a session as its only agent; mails tell the outside world."""
    store = mulligan.open(os.environ["MULLIGAN_STORE"], create=False)
    with store, store.agent("worker", session=name, workspace=".") as session:
        mail(session, MAILS[0], "looking into the logouts at midnight")
        work(session, approach)
        mail(session, MAILS[1], OUTCOMES[approach][-1])


def mail(session: mulligan.Session, key: str, text: str) -> None:
    """Send a mail once, however often this is called."""
    sending = session.effect("mail.send", intent={"text": text}, key=key)
    with sending as effect, OUTBOX.open("a") as file:
        file.write("" if effect.settled else f"{key}: {text}\n")


def work(session: mulligan.Session, approach: str = "") -> None:
    """Work until every task is done; a team, which has no approach, until it may end."""
    for cycle in session.loop():
        with cycle, session.tasks.working() as task:
            if task is not None:
                take_steps(session, task, approach or "rewrite")
            elif approach or session.state.get(APPROVED):
                break
            time.sleep(WORKING)


def take_steps(session: mulligan.Session, task: mulligan.Task, approach: str) -> None:
    """Take the steps that are left; a line of JSON acknowledges each once it is durable."""
    number = TASKS.index(task.title)
    result = OUTCOMES[approach][number - SHARED] if number >= SHARED else task.title
    for step, name in enumerate(STEPS):
        message = {"role": "assistant", "content": f"{name}: {result}", "step": f"{number}.{step}"}
        if message in session.state.get("conversation"):
            continue
        is_hard = message["step"] == HARD_STEP and task.attempts == 1
        until = time.monotonic() + (HARD if is_hard else WORKING)
        while time.monotonic() < until and not session.state.get(APPROVED):
            time.sleep(WORKING)
        Path(f"notes/{number + 1}.md").write_text(f"{message['content']}\n")
        session.state.append("conversation", message)
        print(json.dumps(message), flush=True)
    session.tasks.complete(task.id, result)
    session.checkpoint("routine", f"done: {task.title}", LABEL if number == SHARED - 1 else None)


if __name__ == "__main__":
    work_alone(*sys.argv[1:]) if sys.argv[1:] else work(mulligan.attach())
