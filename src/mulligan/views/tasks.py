"""Tasks of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.model import Task
    from mulligan.session import Session

STATUSES = ("pending", "in_progress", "completed", "failed", "skipped")


def task_view(task: Task) -> dict[str, Any]:
    """Return a task."""
    return {
        "id": task.id,
        "title": task.title,
        "status": task.status,
        "order": task.order,
        "after": list(task.after),
        "parent": task.parent,
        "owner": task.owner,
        "attempts": task.attempts,
        "progress": task.progress,
        "note": task.note,
        "result": task.result,
        "error": task.error,
        "data": task.data,
    }


def tasks_view(session: Session) -> dict[str, Any]:
    """Return the tasks of a session, each after the one it is part of."""
    return {"session": session.name, "tasks": [task_view(task) for task in session.tasks]}


def task_counts(session: Session) -> dict[str, int]:
    """Return how many tasks are in each status; those with parts of their own are not counted."""
    tasks = list(session.tasks)
    inner = {task.parent for task in tasks}
    leaves: list[str] = [task.status for task in tasks if task.id not in inner]
    return {status: leaves.count(status) for status in STATUSES} if leaves else {}
