"""mulligan restore."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from mulligan.cli.context import Call, Command, example
from mulligan.cli.differences import all_differences, difference_fields, print_differences
from mulligan.cli.render import Cell, clean, place, plural, print_json
from mulligan.cli.restored import print_restored, unapplied_fields

if TYPE_CHECKING:
    from mulligan import Diff

DECLINED = 1
PREVIEW = 20
EXAMPLE = example(
    "mulligan restore @latest --dry-run", "mulligan restore tests-green --only memory"
)


@click.command("restore", cls=Command, epilog=EXAMPLE)
@click.argument("point")
@click.option("--only", multiple=True, metavar="PART", help="Only this part: memory, agents/coder.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def command(call: Call, point: str, only: tuple[str, ...], dry_run: bool, yes: bool) -> None:
    """Bring the state of POINT back, or parts of it.

    The present is kept in a safety checkpoint first, and `mulligan undo` brings it back; so it
    asks only on a terminal.
    """
    session, parts = call.open_session(), only or None
    changes = session.diff(session.head, point, parts)
    if not call.json and not call.quiet:
        _preview(changes, None if dry_run else PREVIEW)
    if dry_run or not changes:
        _print_unapplied(call, changes, parts)
        return
    if not yes and not call.json and _on_terminal() and not _agreed():
        click.echo("Nothing was changed.", err=True)
        raise click.exceptions.Exit(DECLINED)
    done = session.restore(changes.after, parts)
    print_restored(call, done, changes=difference_fields(all_differences(changes)))


def _preview(changes: Diff, limit: int | None) -> None:
    found = all_differences(changes)
    click.echo(
        Cell(clean(f"{place(changes.before)} → {place(changes.after)}"), bold=True).styled()
        + f"  {plural(len(found), 'change')}"
    )
    print_differences(found, limit)


def _print_unapplied(call: Call, changes: Diff, parts: tuple[str, ...] | None) -> None:
    if call.json:
        found = difference_fields(all_differences(changes))
        print_json({**unapplied_fields(changes.after, parts), "changes": found})
    elif not call.quiet:
        click.echo(
            "Nothing was changed: this was a dry run."
            if changes
            else "Nothing to restore: the state is that of the point already."
        )


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _agreed() -> bool:
    return click.confirm("Restore?", default=True, err=True)
