"""mulligan checkpoint."""

from __future__ import annotations

import click

from mulligan.cli.context import Call, Command, create_option, example
from mulligan.cli.render import SHORT_ID, Cell, checkpoint_fields, columns, print_json

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
@click.pass_obj
def command(call: Call, kind: str, note: str | None, label: str | None, create: bool) -> None:
    """Take a checkpoint now and print its id.

    In a script the id is all that is printed.
    """
    taken = call.open_session(create).checkpoint(kind, note, label)
    if call.json:
        print_json(checkpoint_fields(taken))
    elif call.bare:
        click.echo(taken.id)
    else:
        cells = [Cell(taken.id[:SHORT_ID], "yellow"), Cell(f"{taken.session} #{taken.seq}")]
        click.echo("".join(columns([[*cells, Cell(f"{taken.kind}, {taken.cost.ms:.1f} ms")]])))
