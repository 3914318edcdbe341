"""mulligan diff."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mulligan.cli.context import Call, Command, example
from mulligan.cli.differences import all_differences, difference_fields, print_differences
from mulligan.cli.render import Cell, clean, place, point_fields, print_json

if TYPE_CHECKING:
    from mulligan import Diff

EXAMPLE = example("mulligan diff @latest", "mulligan diff tests-green main-fork-1:@latest")


@click.command("diff", cls=Command, epilog=EXAMPLE)
@click.argument("before", metavar="A")
@click.argument("after", metavar="[B]", required=False)
@click.option("--only", multiple=True, metavar="PART", help="Only this part: memory, agents/coder.")
@click.pass_obj
def command(call: Call, before: str, after: str | None, only: tuple[str, ...]) -> None:
    """Show what differs in state and conversation from A to B; to the present, without B."""
    found = call.open_session().diff(before, after, only or None)
    if call.json:
        print_json(
            {
                "before": point_fields(found.before),
                "after": point_fields(found.after),
                "state": difference_fields(found.state),
                "conversation": difference_fields(found.conversation),
            }
        )
    elif call.quiet:
        for difference in all_differences(found):
            click.echo(clean(difference.place))
    else:
        _print(found)


def _print(found: Diff) -> None:
    click.echo(Cell(clean(f"{place(found.before)} → {place(found.after)}"), bold=True).styled())
    print_differences(all_differences(found))
    if not found:
        click.echo("Nothing differs.")
