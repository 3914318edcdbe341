"""Continuing a graph that a crash or an interrupt stopped, instead of starting it again."""

from __future__ import annotations

from typing import Any


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


def _chosen(snapshot: Any, input: Any, *, once: bool) -> Any:
    from langgraph.types import Command

    is_started = bool(snapshot.next) or (once and snapshot.created_at is not None)
    return None if is_started and not isinstance(input, Command) else input
