"""An agent of the demo's team, started by the supervisor: ``python -m mulligan.cli.demo.worker``.

It learns from its surroundings who it is, waits for the others, claims tasks, and tells them what
it has done.
"""

from __future__ import annotations

import time

import mulligan

WORKING = 0.12
"""Seconds that stand for the work on a task."""

APPROVED = "context/approved"
"""Where somebody says that the team may end."""


def main() -> None:
    """Work until there is nothing left to claim, and nothing that others might still release."""
    session = mulligan.attach()
    session.agent.update(working_on="nothing yet")
    while not _all_are_here(session):
        time.sleep(WORKING / 4)
    for cycle in session.loop():
        with cycle:
            task = session.tasks.claim()
            if task is None and _all_done(session) and session.state.get(APPROVED):
                break
            if task is None:
                time.sleep(WORKING / 4)
                continue
            session.agent.update(working_on=task.title)
            with session.agent.step(task.title, deadline=30):
                time.sleep(WORKING)
            with session.batch():
                session.state.append(("memory", "session", "done"), [task.id, session.actor])
                session.tasks.complete(task.id)
    session.agent.update(state="done", working_on="nothing")
    session.close()


def _all_are_here(session: mulligan.Session) -> bool:
    """Whether every agent of the team has begun, so that nobody is left without work."""
    names = session.state.get("orchestrator/workflow/agents")
    return all(session.state.get(("agents", name, "working_on")) for name in names)


def _all_done(session: mulligan.Session) -> bool:
    return all(task.status == "completed" for task in session.tasks)


if __name__ == "__main__":
    main()
