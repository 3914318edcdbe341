"""What `run`, `up` and `resume` share: options, progress on the terminal, and how a run ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.context import UNSAFE_HINT, CliContext
from mulligan.cli.render.output_queue import OutputQueue
from mulligan.cli.render.recovery import found_lines, plan_lines
from mulligan.cli.render.terminal import style, untouched
from mulligan.cli.render.text import SHORT_ID, Cell, clean, plural, print_json
from mulligan.errors import UnsafeWorkspace
from mulligan.supervisor.run import RunOptions, RunReporter
from mulligan.views.sessions import latest_checkpoint
from mulligan.views.teams import run_view

if TYPE_CHECKING:
    from mulligan import Session
    from mulligan.recovery.plan import ResumePlan
    from mulligan.recovery.resume import Resumed
    from mulligan.supervisor.run import RunOutcome
    from mulligan.supervisor.team import Show

COLOURS = ("cyan", "green", "magenta", "yellow", "blue")

STDIN = 0
STDERR = 2

INTERRUPTED = 130
PAUSED = 75
"""The exit code of a paused team: EX_TEMPFAIL, so that a script does not continue."""


class TeamReporter(RunReporter):
    """Prints the progress of a run to standard error, and the output of several agents."""

    def __init__(self, call: CliContext, queue: OutputQueue) -> None:
        self._call = call
        self._queue = queue
        self._is_chatty = not call.json and not call.quiet

    def say(self, line: str) -> None:
        """Print a sentence with the time."""
        if not self._call.quiet:
            time = style(datetime.now().astimezone().strftime("%H:%M:%S"), dim=True)
            self._queue.say(f"{time}  {clean(line)}", err=True)

    def found(self, plan: ResumePlan) -> None:
        """Print what was interrupted."""
        self._print(found_lines(plan))

    def planned(self, plan: ResumePlan) -> None:
        """Print what recovery does."""
        self._print(plan_lines(plan))

    def prepared(self, resumed: Resumed) -> None:
        """Print which checkpoint keeps what was there before."""
        kept = resumed.checkpoint.id[:SHORT_ID]
        self._print([f"What was there before is kept in the checkpoint {kept}."])

    def output(self, agents: Sequence[str]) -> Show | None:
        """Prefix output with the name of its agent, if there are several agents."""
        # A single agent keeps the terminal or pipe itself, so that its output is not altered or
        # delayed.
        return None if len(agents) == 1 else _printer(self._call, self._queue, agents)

    def _print(self, lines: Iterable[str]) -> None:
        for line in lines if self._is_chatty else ():
            self._queue.say(line, err=True)


@contextmanager
def run_options(call: CliContext) -> Iterator[RunOptions]:
    """Yield the options of a run; every report is printed before the block ends."""
    from mulligan.supervisor.terminal import terminal_of

    # A late request may send SIGUSR1 after the team has ended. By default it would end this process
    # before it has printed the result.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    # Outermost: also the reports of a failure are printed before the command ends.
    with OutputQueue() as queue:
        try:
            yield RunOptions(
                variables=os.environ,
                with_files=not call.no_files,
                force=call.force,
                # With --json, standard output is reserved for the result.
                output=STDERR if call.json else None,
                # In the background of a terminal, reading would stop the agent.
                stdin=None if os.isatty(STDIN) else STDIN,
                terminal=terminal_of(STDIN),
                reporter=TeamReporter(call, queue),
            )
        except UnsafeWorkspace as error:
            raise UnsafeWorkspace(str(error), hint=UNSAFE_HINT) from error


def print_end(call: CliContext, session: Session, outcome: RunOutcome) -> None:
    """Print how the run ended: as JSON, or with the next command to type."""
    if call.json:
        print_json(run_view(session, outcome))
    elif outcome.status == "paused" and not call.quiet:
        click.echo("Continue with `mulligan resume`.", err=True)
    elif outcome.status == "failed" and not call.quiet:
        print_failed(session, outcome)
    if outcome.quarantined and not call.quiet and not call.json:
        print_quarantined(outcome)


def print_failed(session: Session, outcome: RunOutcome) -> None:
    """Say what is kept of a run that failed, and how to go on."""
    taken, name = latest_checkpoint(session), clean(session.name)
    kept = f"What it left is in the checkpoint {taken.id[:SHORT_ID]}. " if taken else ""
    click.echo(f"{kept}Nothing recorded is lost.", err=True)
    if outcome.resumed is None:
        click.echo(f"`mulligan resume {name}` starts it again;", err=True)
    else:
        click.echo("It failed again;", err=True)
    back = f"`mulligan resume {name} --rollback` goes to the last good checkpoint first."
    click.echo(back, err=True)


def print_quarantined(outcome: RunOutcome) -> None:
    """Name the tasks in quarantine, and how to retry one."""
    tasks = outcome.quarantined
    verb = "is" if len(tasks) == 1 else "are"
    words = f"{plural(len(tasks), 'task')} {verb} quarantined: {', '.join(tasks)}."
    click.echo(Cell(clean(words), "red").styled(), err=True)
    again = f"mulligan tasks retry -s {outcome.session} {tasks[0]}"
    click.echo(clean(f"`mulligan status` shows the health; `{again}` retries a task."), err=True)


def exit_code(outcome: RunOutcome, agent: dict[str, Any] | None = None) -> int:
    """Return the exit code of a run: that of ``agent``, where there was only one."""
    if outcome.status == "done":
        return 1 if outcome.quarantined else 0
    if outcome.status == "paused":
        return INTERRUPTED if outcome.reason == "SIGINT" else PAUSED
    # As a shell reports a child that was ended by a signal.
    if agent and agent.get("signal"):
        return 128 + int(agent["signal"])
    return int(agent.get("exit_status") or 1) if agent else 1


def _printer(call: CliContext, queue: OutputQueue, names: Sequence[str]) -> Show:
    width = max(len(name) for name in names)
    before = {
        name: Cell(f"{name.ljust(width)} |", COLOURS[number % len(COLOURS)]).styled()
        for number, name in enumerate(names)
    }

    def show(name: str, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        # Colours in an agent's output are kept; those of its name are ours.
        queue.say(f"{before[name]} {untouched(text)}", err=call.json)

    return show
