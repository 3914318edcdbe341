"""Entry point of the command line: the table of commands, and how failures are reported."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click

from mulligan.cli.context import CliContext, colour, shared_options
from mulligan.cli.entry import leave
from mulligan.cli.overview import ABOUT, COMMANDS, EXAMPLE, POINTS
from mulligan.cli.render.streams import (
    lost_output,
    open_streams,
    stop_when_closed,
    warn_of_lost_output,
)
from mulligan.cli.render.terminal import guarded

ONLY_PRINT = {"log", "show", "events", "status", "diff", "demo", "help"}
"""Commands that end when their output is closed; others complete their work first."""


YOUNG_OBJECTS = 10_000
"""After how many new objects the garbage collector looks at them; Python's own value is 700.

A command's further imports alone make tens of thousands.
"""


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
        found = super().resolve_command(ctx, args)
        collect_garbage()
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(
    cls=LazyGroup,
    invoke_without_command=True,
    params=shared_options(environment=True),
    help=ABOUT,
    epilog=f"\b\n{POINTS}\n\n\b\n{EXAMPLE}",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="mulligan", message="mulligan %(version)s")
@click.pass_context
def group(context: click.Context) -> None:
    """Show the help without a command."""
    context.ensure_object(CliContext)
    context.color = colour()
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def collect_garbage() -> None:
    """Turn the garbage collector on if ``entry`` turned it off; what was imported stays."""
    if gc.isenabled():
        return
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    gc.enable()


def main() -> NoReturn:
    """Run the command line and exit."""
    open_streams()
    if "_MULLIGAN_COMPLETE" in os.environ:
        group.main(prog_name="mulligan")
    leave(run(sys.argv[1:]))


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
    warn_of_lost_output()
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
