"""Entry point of the command line: the table of commands, and how failures are reported."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from mulligan.cli.context import CliContext, colour, example, shared_options
from mulligan.cli.render.streams import lost_output, lost_reason, open_streams, stop_when_closed
from mulligan.cli.render.terminal import guarded

COMMANDS = {
    "init": "Make a store for a project.",
    "run": "Run an agent and keep it alive and recoverable.",
    "up": "Run a team of agents from a workflow file.",
    "resume": "Continue an interrupted or paused session.",
    "pause": "Stop the agents of a session at a safe point.",
    "checkpoint": "Take a checkpoint now and print its id.",
    "log": "List checkpoints, restores and forks, newest first.",
    "show": "Show one checkpoint.",
    "events": "List the events of a session, or follow them live.",
    "status": "Show the store and its sessions.",
    "diff": "Show what differs between two points.",
    "restore": "Restore state and files of a point; nothing is lost.",
    "undo": "Undo the last restore.",
    "redo": "Reverse the last undo.",
    "mark": "Mark a checkpoint as good or bad.",
    "label": "List the labels of checkpoints, or drop one.",
    "bisect": "Find the first bad checkpoint by running a command.",
    "fork": "Make a new session that continues from a point.",
    "tasks": "List the tasks, or change them from scripts.",
    "mail": "List messages between agents, send and receive.",
    "state": "Read and write the state from scripts.",
    "verify": "Check everything in the store.",
    "stores": "List all stores with their projects.",
    "move-store": "Move the store out of its project, or into it.",
    "demo": "See the whole story, with real processes and a real kill -9.",
    "help": "Show the help of a command, or a guide.",
}
"""Every command with its short help, so that --help imports no command module."""

ONLY_PRINT = {"log", "show", "events", "status", "diff", "demo", "help"}
"""Commands that end when their output is closed; others complete their work first."""

POINTS = """\b
A POINT is a checkpoint's id or the beginning of one, a label, @latest,
@latest~2, @good, @bad, '#SEQ', or a time: 2026-11-15T10:00, 11:26,
'36 minutes ago', '10m ago'.
SESSION:POINT is one of another session."""


EXAMPLE = example(
    "mulligan init",
    "mulligan checkpoint -m 'before the refactoring'",
    "mulligan restore @latest",
)


class LazyGroup(click.Group):
    """The commands by name; a command's module is imported when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"mulligan.cli.commands.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest similar ones."""
        if args[0] not in COMMANDS:
            raise click.UsageError(_no_command(args[0]), ctx)
        if args[0] in ONLY_PRINT:
            stop_when_closed()
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(
    cls=LazyGroup,
    invoke_without_command=True,
    params=shared_options(environment=True),
    epilog=f"{POINTS}\n\n{EXAMPLE}",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="mulligan", message="mulligan %(version)s")
@click.pass_context
def group(context: click.Context) -> None:
    """Checkpoint and recovery for long-running AI agents, on one durable timeline."""
    context.ensure_object(CliContext)
    context.color = colour()
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> None:
    """Run the command line and exit."""
    open_streams()
    if "_MULLIGAN_COMPLETE" in os.environ:
        group.main(prog_name="mulligan")
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """Run one command and return its exit code; every failure is reported in one sentence."""
    with guarded(colours=colour() is not False):
        return _run(args)


def _run(args: Sequence[str]) -> int:
    try:
        code = _invoke(list(args))
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        from mulligan.cli.errors import CLOSED_PIPE, report

        if isinstance(error, BrokenPipeError) and lost_output() is not None:
            return CLOSED_PIPE
        return report(error, "--json" in args)
    if (reason := lost_reason()) is not None:
        said = f"Warning: the command succeeded, but its output could not be written: {reason}."
        click.echo(said, err=True)
    return code


def _invoke(args: list[str]) -> int:
    try:
        with group.make_context("mulligan", args) as context:
            group.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    return 0


def _no_command(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, COMMANDS, n=2)
    return f"There is no command {name!r}" + (
        f"; did you mean {' or '.join(near)}?" if near else "."
    )
