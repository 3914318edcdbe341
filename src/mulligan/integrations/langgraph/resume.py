"""Continuing a graph that a crash or an interrupt stopped, instead of starting it again."""

from __future__ import annotations

from typing import Any

NO_TASK = "00000000-0000-0000-0000-000000000000"
"""The task of an answer that LangGraph has not handed to one yet."""


def resume_input(graph: Any, input: Any, config: Any, *, once: bool = False) -> Any:
    """Return the input for a run: None if the thread has unfinished work, or else ``input``.

    ``graph.invoke(resume_input(graph, question, config), config)`` starts a graph the first time
    and continues it the next times the program is started, whatever ended it before. With plain
    ``graph.invoke(question, config)``, a program that is started again sends its input a second
    time, and steps that were done are done again.

    ``once`` is for threads that are one job: their input is sent once, and when the job is done,
    ``graph.invoke`` returns its result again. Without it, a finished thread gets the input as its
    next turn. A thread that waits at an ``interrupt()`` has unfinished work as well; a
    ``Command(resume=answer)`` for it is returned as it is.
    """
    return _chosen(graph.get_state(config), input, once=once)


async def aresume_input(graph: Any, input: Any, config: Any, *, once: bool = False) -> Any:
    """Do what :func:`resume_input` does, for graphs that are used asynchronously."""
    return _chosen(await graph.aget_state(config), input, once=once)


def tasks_in_doubt(graph: Any, config: Any) -> list[Any]:
    """Return the tasks of a thread that may have started, and have no result.

    After a crash, these run again when the thread is continued; all others have their results. So
    a program can look first whether they have acted outside. Tasks of subgraphs are in the place
    of the task that called them. A task that waits at an ``interrupt()`` is in doubt once it got
    its answer.
    """
    snapshot = graph.get_state(config, subgraphs=True)
    found = [graph.checkpointer.get_tuple(one) for one in _configs(snapshot)]
    return _in_doubt(snapshot, _answered(found))


async def atasks_in_doubt(graph: Any, config: Any) -> list[Any]:
    """Do what :func:`tasks_in_doubt` does, for graphs that are used asynchronously."""
    snapshot = await graph.aget_state(config, subgraphs=True)
    found = [await graph.checkpointer.aget_tuple(one) for one in _configs(snapshot)]
    return _in_doubt(snapshot, _answered(found))


def _configs(snapshot: Any) -> list[Any]:
    """Return the configs of the checkpoints of a graph and of its subgraphs."""
    inner = [_configs(task.state) for task in snapshot.tasks if _is_subgraph(task)]
    return [snapshot.config, *(config for configs in inner for config in configs)]


def _answered(found: list[Any]) -> set[str]:
    """Return the tasks for which an answer was saved; ``NO_TASK`` stands for all."""
    from langgraph.checkpoint.serde.types import RESUME

    writes = (write for one in found if one is not None for write in one.pending_writes)
    return {task for task, channel, _ in writes if channel == RESUME}


def _in_doubt(snapshot: Any, answered: set[str]) -> list[Any]:
    found = []
    for task in snapshot.tasks:
        inner = _in_doubt(task.state, answered) if _is_subgraph(task) else []
        waits = task.interrupts and not {task.id, NO_TASK} & answered
        if inner:
            found += inner
        elif task.result is None and task.error is None and not waits:
            found.append(task)
    return found


def _is_subgraph(task: Any) -> bool:
    return hasattr(task.state, "tasks")


def _chosen(snapshot: Any, input: Any, *, once: bool) -> Any:
    from langgraph.types import Command

    is_started = bool(snapshot.next) or (once and snapshot.created_at is not None)
    return None if is_started and not isinstance(input, Command) else input
