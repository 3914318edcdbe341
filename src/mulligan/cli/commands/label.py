"""mulligan label."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.text import SHORT_ID, Cell, ago, clean, echo_columns, print_json
from mulligan.views.checkpoints import labelled, labels_view

if TYPE_CHECKING:
    from mulligan import Checkpoint

EXAMPLE = example("mulligan label", "mulligan label --drop tests-green")


@click.command("label", cls=Command, epilog=EXAMPLE)
@click.option("--drop", metavar="LABEL", help="Remove this label; its checkpoint stays.")
@click.pass_obj
def command(call: CliContext, drop: str | None) -> None:
    """List the labels of a session with the checkpoints that they name, or drop one.

    `mulligan checkpoint --label L` sets a label, or moves one that is in use: a label names the
    newest checkpoint that got it. Checkpoints that lose a label stay, and are named by their ids.
    """
    session = call.open_to_look() if drop is None else call.open_session()
    if drop is not None:
        lost = session.checkpoints.drop_label(drop)
    if call.json:
        print_json(labels_view(session, drop))
    elif drop is not None:
        if not call.quiet:
            click.echo(clean(f"{drop} no longer names #{lost.seq} ({lost.id[:SHORT_ID]})."))
    elif call.quiet:
        for name in session.checkpoints.labels():
            click.echo(clean(name))
    else:
        rows = [_row(name, one) for name, one in labelled(session).items()]
        if not rows:
            click.echo(clean(f"Session {session.name!r} has no labels."), err=True)
        echo_columns(rows)


def _row(name: str, named: Checkpoint) -> list[Cell]:
    return [
        Cell(clean(name), bold=True),
        Cell(named.id[:SHORT_ID], "yellow"),
        Cell(f"#{named.seq}", dim=True),
        Cell(ago(named.time), dim=True),
    ]
