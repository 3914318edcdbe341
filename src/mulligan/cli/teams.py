"""What `run` and `up` have in common: supervise a team, tell of it, and say how it ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.context import UNSAFE_HINT, CliContext
from mulligan.cli.render.output_queue import OutputQueue
from mulligan.cli.render.terminal import style, untouched
from mulligan.cli.render.text import Cell, clean, print_json
from mulligan.views.teams import run_view

if TYPE_CHECKING:
    from mulligan import Session, Store
    from mulligan.recovery.resume import Resumed
    from mulligan.supervisor.requests import Answer
    from mulligan.supervisor.workflow import Workflow

COLOURS = ("cyan", "green", "magenta", "yellow", "blue")

INTERRUPTED = 130
PAUSED = 75
"""What a team that is not done yet ends with: a temporary failure, so that no script goes on."""


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A time span on the command line, as in a workflow: 30s, 5m, 2h."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds."""
        from mulligan.supervisor.workflow import duration

        try:
            number = isinstance(value, str) and value.replace(".", "", 1).isdecimal()
            return duration(float(value) if number else value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def supervise_team(
    call: CliContext, store: Store, session: Session, workflow: Workflow, *, resumed: bool = False
) -> str:
    """Run a team until it is done, and return how its session was left.

    A session that was interrupted is brought back first, as ``mulligan resume`` does it.
    """
    brought_back = None if resumed else _bring_back(call, store, session)
    if brought_back is None:
        return _supervise(call, store, session, workflow, resumed=resumed)
    from mulligan.recovery.resume import try_out

    return try_out(
        session,
        brought_back.at,
        lambda: _supervise(call, store, session, workflow, resumed=True),
    )


def _bring_back(call: CliContext, store: Store, session: Session) -> Resumed | None:
    """Bring a session back whose supervisor is gone; None if it was not interrupted."""
    from mulligan.cli.commands.resume import prepare
    from mulligan.recovery.detect import interruption

    found = interruption(session)
    if found is None or not found.is_supervised:
        return None
    return prepare(call, store, session, {}, found, same_team=False)


def _supervise(
    call: CliContext, store: Store, session: Session, workflow: Workflow, *, resumed: bool
) -> str:
    from mulligan.errors import UnsafeWorkspace
    from mulligan.supervisor.runner import supervise

    several = len(workflow.agents) > 1
    with OutputQueue() as output_queue:
        try:
            return supervise(
                store,
                session.name,
                workflow,
                variables=os.environ,
                resumed=resumed,
                say=_teller(call, output_queue),
                show=_printer(call, output_queue, list(workflow.agents)) if several else None,
                # Standard output is for the result then, and for nothing else.
                output=sys.stderr.fileno() if call.json else None,
                force=call.force,
            )
        except UnsafeWorkspace as error:
            raise UnsafeWorkspace(str(error), hint=UNSAFE_HINT) from error


def tell_of_late(call: CliContext, done: Answer) -> None:
    """Name the agents that were not at a safe point in time."""
    if done.late and not call.quiet and not call.json:
        click.echo(clean(f"Not at a safe point: {', '.join(done.late)}."), err=True)


def print_end(call: CliContext, session: Session, workflow: Workflow, status: str) -> None:
    """Print how a session was left: JSON, or what a person can do now."""
    if call.json:
        print_json(run_view(session, workflow.agents, status, session.internal.control("reason")))
    elif status == "paused" and not call.quiet:
        click.echo("Go on with `mulligan resume`.", err=True)


def exit_code(session: Session, agent: dict[str, Any] | None, status: str) -> int:
    """Return with what to exit: as the agent did, if there was only one."""
    if status == "done":
        return 0
    if status == "paused":
        return INTERRUPTED if session.internal.control("reason") == "SIGINT" else PAUSED
    if agent and agent.get("signal"):
        return 128 + int(agent["signal"])
    return int(agent.get("exit_status") or 1) if agent else 1


def _teller(call: CliContext, output_queue: OutputQueue) -> Callable[[str], None]:
    def tell(line: str) -> None:
        if not call.quiet:
            time = style(datetime.now().astimezone().strftime("%H:%M:%S"), dim=True)
            output_queue.say(f"{time}  {clean(line)}", err=True)

    return tell


def _printer(
    call: CliContext, output_queue: OutputQueue, names: list[str]
) -> Callable[[str, bytes], None]:
    width = max(len(name) for name in names)
    before = {
        name: Cell(f"{name.ljust(width)} |", COLOURS[number % len(COLOURS)]).styled()
        for number, name in enumerate(names)
    }

    def show(name: str, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        # What an agent prints is its own, colours included; its name is not.
        output_queue.say(f"{before[name]} {untouched(text)}", err=call.json)

    return show
