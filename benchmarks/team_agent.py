"""The agents of the benchmark of teams: ``python -m benchmarks.team_agent ROLE``.

Apart from the benchmark itself, so that an agent's start is its own and not that of a table.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import mulligan

RATE = 50
"""Durable events a second, of each agent."""


def _hold() -> None:
    """Claim a task and work on it until something ends this."""
    session = mulligan.attach()
    task = session.tasks.claim()
    session.state.set(("working", session.actor), task and task.id)
    while True:
        time.sleep(60)


def _write(seconds: float) -> None:
    """Write events at the rate of a busy agent, for some seconds."""
    session = mulligan.attach()
    until = time.monotonic() + seconds
    number = 0
    while time.monotonic() < until:
        due = time.monotonic() + 1 / RATE
        session.state.append(("written", session.actor), number)
        number += 1
        time.sleep(max(0.0, due - time.monotonic()))
    session.state.set(("count", session.actor), number)
    session.close()


def _steps(looped: bool, count: int) -> float:
    """Return the seconds of one step with the loop of an agent, or without."""
    session = mulligan.attach()
    cycles = iter(session.loop()) if looped else None
    seconds = []
    for number in range(count):
        began = time.perf_counter()
        if cycles is not None:
            next(cycles)
        session.state.set("step", number)
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def main(role: str) -> None:
    """Be an agent: ``hold``, ``write:SECONDS``, ``loop:COUNT`` or ``bare:COUNT``."""
    name, _, number = role.partition(":")
    if name == "hold":
        _hold()
    elif name == "write":
        _write(float(number))
    else:
        print(_steps(name == "loop", int(number)))


if __name__ == "__main__":
    main(*sys.argv[1:])
