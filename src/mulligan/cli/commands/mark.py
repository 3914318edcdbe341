"""mulligan mark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.text import SHORT_ID, Cell, print_json, verdict_cell
from mulligan.views.checkpoints import checkpoint_view

if TYPE_CHECKING:
    from mulligan import Verdict

EXAMPLE = example(
    "mulligan mark @latest good -m 'all tests pass'",
    "mulligan mark tests-green~1 bad",
    "mulligan restore @good",
)


@click.command("mark", cls=Command, epilog=EXAMPLE)
@click.argument("point")
@click.argument("verdict", type=click.Choice(["good", "bad"]))
@click.option("-m", "--note", help="Why, in one sentence.")
@click.pass_obj
def command(call: CliContext, point: str, verdict: Verdict, note: str | None) -> None:
    """Give the checkpoint at POINT, or the one before it, the verdict good or bad.

    The points @good and @bad name the latest ones, and @good~1 the good one before that. `mulligan
    resume --rollback` goes back to @good. A later mark replaces an earlier one.
    """
    session = call.open_session()
    marked = session.checkpoints.mark(point, verdict, note)
    if call.json:
        print_json(checkpoint_view(marked, verdict))
    elif call.quiet:
        click.echo(marked.id)
    else:
        identity = Cell(marked.id[:SHORT_ID], "yellow").styled()
        where = f"{marked.session} #{marked.seq}"
        click.echo(f"{identity}  {where}  {verdict_cell(verdict).styled()}")
