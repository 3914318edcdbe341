"""mulligan checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mulligan.cli.context import Call, Command, create_option, example, files_options
from mulligan.cli.files import coverage_text, without_store
from mulligan.cli.render import SHORT_ID, Cell, checkpoint_fields, columns, print_json

if TYPE_CHECKING:
    from mulligan import Checkpoint

EXAMPLE = example(
    "mulligan checkpoint -m 'before the refactoring'",
    "id=$(mulligan checkpoint --label tests-green)",
)


@click.command("checkpoint", cls=Command, epilog=EXAMPLE)
@click.option(
    "-k",
    "--kind",
    default="manual",
    show_default=True,
    help="routine, pre_operation, recovery, manual, or one of your own.",
)
@click.option("-m", "--note", help="Why it was taken, in a sentence.")
@click.option("--label", help="A name to find it by.")
@create_option
@files_options
@click.pass_obj
def command(call: Call, kind: str, note: str | None, label: str | None, create: bool) -> None:
    """Take a checkpoint of state and files now and print its id.

    The files are those of the directory that holds the store; `.mulliganignore` says which to
    leave out, in the syntax of .gitignore. In a script the id is all that is printed.
    """
    session = call.open_session(create, files=True)
    with call.working():
        taken = session.checkpoint(kind, note, label)
    if call.json:
        print_json(checkpoint_fields(taken))
    elif call.bare:
        click.echo(taken.id)
    else:
        cells = [Cell(taken.id[:SHORT_ID], "yellow"), Cell(f"{taken.session} #{taken.seq}")]
        click.echo("".join(columns([[*cells, Cell(_summary(taken))]])))


def _summary(taken: Checkpoint) -> str:
    held, left_out = coverage_text(taken.coverage), 0
    if taken.coverage is not None:
        left_out = len(without_store(taken.coverage.left_out))
    parts = [taken.kind, held, f"{left_out:,} left out" if left_out else ""]
    return ", ".join([*filter(None, parts), f"{taken.cost.ms:.1f} ms"])
