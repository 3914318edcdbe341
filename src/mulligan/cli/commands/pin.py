"""mulligan pin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.text import SHORT_ID, Cell, ago, clean, echo_columns, print_json
from mulligan.views.checkpoints import pinned_checkpoints, pinned_view

if TYPE_CHECKING:
    from mulligan import Checkpoint
    from mulligan.timeline.pinned import PinnedBy

EXAMPLE = example("mulligan pin @good -m 'before the migration'", "mulligan pin --drop @good")


@click.command("pin", cls=Command, epilog=EXAMPLE)
@click.argument("point", required=False)
@click.option("-m", "--note", help="Why, in one sentence.")
@click.option("--drop", is_flag=True, help="Leave it to the retention policy again.")
@click.pass_obj
def command(call: CliContext, point: str | None, note: str | None, drop: bool) -> None:
    """Keep the checkpoint at POINT, or the one before it, whatever the retention policy says.

    Without POINT, list the pinned checkpoints of the session.
    """
    if point is None and (drop or note):
        raise click.UsageError("A POINT is missing.")
    session = call.open_to_look() if point is None else call.open_session()
    if point is not None:
        named = session.checkpoints.unpin(point) if drop else session.checkpoints.pin(point, note)
    if call.json:
        print_json(pinned_view(session))
    elif call.quiet:
        for one in pinned_checkpoints(session) if point is None else [named]:
            click.echo(one.id)
    elif point is not None:
        said = "is no longer pinned" if drop else "is pinned and stays"
        click.echo(clean(f"{named.id[:SHORT_ID]}  {named.session} #{named.seq} {said}."))
    else:
        pins = session.checkpoints.pinned()
        if not pins:
            click.echo(clean(f"Session {session.name!r} has no pinned checkpoints."), err=True)
        echo_columns([_row(one, pins[one.id]) for one in pinned_checkpoints(session)])


def _row(checkpoint: Checkpoint, pinned: PinnedBy) -> list[Cell]:
    return [
        Cell(checkpoint.id[:SHORT_ID], "yellow"),
        Cell(f"#{checkpoint.seq}", dim=True),
        Cell(ago(checkpoint.time), dim=True),
        Cell(clean(pinned.note or "")),
    ]
