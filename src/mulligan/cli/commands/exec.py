"""mulligan exec."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mulligan.cli.context import CliContext, Command, agent_option, example, files_options
from mulligan.cli.programs import CommandNotExecutable, CommandNotFound
from mulligan.cli.render.text import clean, plural, print_json
from mulligan.views.effects import call_view

if TYPE_CHECKING:
    from mulligan import Session

EXAMPLE = example(
    "mulligan exec -- make test",
    "mulligan exec --effect deploy -- ./deploy.sh prod",
)
BY_SIGNAL = 128


@click.command(
    "exec", cls=Command, epilog=EXAMPLE, context_settings={"ignore_unknown_options": True}
)
@click.argument("words", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--effect", metavar="NAME", help="Run CMD as this effect: once, by its rules.")
@click.option("--key", metavar="KEY", help="What tells this effect from others of its name.")
@agent_option
@files_options
@click.pass_obj
def command(
    call: CliContext,
    words: tuple[str, ...],
    effect: str | None,
    key: str | None,
    agent: str | None,
) -> None:
    """Run a command with a checkpoint before and after it, and record what it did.

    Its output is shown and recorded, with its exit code and the files that it changed; `mulligan
    tools` lists it. The exit code is that of CMD. With --effect, a command that was done before
    does not run: its recorded output is shown. --key tells two of the same command apart.
    """
    if key is not None and effect is None:
        raise click.UsageError("--key is for --effect NAME.")
    session = call.open_for_agent(agent, files=True)
    _warn_of_elsewhere(call, session)
    before = session.head.seq
    try:
        done = session.tools.run(words, effect=effect, key=key, show=_shower(call))
    except FileNotFoundError as error:
        raise CommandNotFound(f"There is no command {words[0]!r}.") from error
    except PermissionError as error:
        raise CommandNotExecutable(f"{words[0]!r} cannot be executed.") from error
    result = done.result if isinstance(done.result, dict) else {}
    if call.json:
        print_json(call_view(done))
    elif (done.seq or 0) <= before:
        sys.stdout.write(str(result.get("stdout", "")))
        sys.stderr.write(str(result.get("stderr", "")))
        click.echo(clean(f"{effect} was done before ({done.id}); it did not run."), err=True)
    elif not call.quiet and done.files:
        click.echo(f"{plural(len(done.files), 'path')} changed; {done.id}", err=True)
    code = int(result.get("exit", 0))
    click.get_current_context().exit(code if code >= 0 else BY_SIGNAL - code)


def _warn_of_elsewhere(call: CliContext, session: Session) -> None:
    """Say that the checkpoints hold another directory than the one in which the command runs."""
    root = None if call.no_files or call.quiet else session.files.directory
    if root is not None and not Path.cwd().is_relative_to(os.path.realpath(root)):
        said = f"Warning: CMD runs here; the checkpoints hold the files of {root}."
        click.echo(clean(said), err=True)


def _shower(call: CliContext) -> Callable[[int, bytes], None]:
    """Return what shows a command's output; with ``--json``, the result alone is on stdout."""

    def show(number: int, data: bytes) -> None:
        os.write(2 if call.json else number, data)

    return show
