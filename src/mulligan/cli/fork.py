"""mulligan fork."""

from __future__ import annotations

import click

from mulligan.cli.context import Call, Command, example
from mulligan.cli.render import Cell, clean, place, print_json

EXAMPLE = example("mulligan fork @latest --name bold", "branch=$(mulligan fork tests-green)")


@click.command("fork", cls=Command, epilog=EXAMPLE)
@click.argument("point")
@click.option("--name", help="The new session's name; one is found if none is given.")
@click.pass_obj
def command(call: Call, point: str, name: str | None) -> None:
    """Make a new session that continues from POINT and print its name.

    It shares all storage with its parent, so it costs next to nothing.
    """
    made = call.open_session().fork(point, name)
    parent = made.parent
    if call.json:
        source = parent and {"session": parent.session, "seq": parent.seq}
        print_json({"session": made.name, "parent": source, "seq": made.head.seq})
    elif call.bare or parent is None:
        click.echo(made.name)
    else:
        click.echo(f"{Cell(clean(made.name), bold=True).styled()} forked from {place(parent)}")
        click.echo(f"Use it with `-s {made.name}`.")
