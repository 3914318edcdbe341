"""mulligan stores."""

from __future__ import annotations

from typing import Any

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.find_store import state_home
from mulligan.cli.render.streams import terminal_columns
from mulligan.cli.render.text import GAP, Cell, ago, clean, echo_columns, print_json, size
from mulligan.views.stores import stores_view

HEADERS = ("store", "project", "", "size", "last used")
INDENT = "  "
STATUS = {
    "here": "",
    "renewed": "another directory is there now",
    "gone": "not there any more",
    "unknown": "unknown",
}


@click.command("stores", cls=Command, epilog=example("mulligan stores", "mulligan stores --json"))
@click.pass_obj
def command(call: CliContext) -> None:
    """List all stores of this user with their projects, sizes and last use.

    The list has every store that `mulligan init` made, and the known ones inside projects. If a
    project is gone, `mulligan init --adopt STORE` links its store to another directory; or delete
    the store by hand.
    """
    view = stores_view(state_home())
    found, damaged = view["stores"], view["damaged"]
    if call.json:
        print_json(view)
    elif call.quiet:
        for store in found:
            click.echo(clean(store["store"]))
    elif found:
        _print(list(map(_row, found)))
        _tell_of_lost(found)
    elif not damaged:
        click.echo("There is no store yet. `mulligan init` makes one.", err=True)
    for store in [] if call.json else damaged:
        click.echo(clean(store["problem"]), err=True)


def _print(rows: list[list[Cell]]) -> None:
    """Print a table; where it has no room, each store on a line and the rest below it."""
    table = [[Cell(header, dim=True) for header in HEADERS], *rows]
    widths = [max(len(row[i].text) for row in table) for i in range(len(HEADERS))]
    if sum(widths) + len(GAP) * (len(widths) - 1) <= terminal_columns():
        echo_columns(table)
        return
    for store, *rest in rows:
        click.echo(store.styled())
        project, *facts = (cell for cell in rest if cell.text)
        said = GAP.join(cell.styled() for cell in facts)
        # Paths stay whole, to be copied: a long one has a line of its own.
        length = len(INDENT) + sum(len(cell.text) + len(GAP) for cell in (project, *facts))
        joined = GAP if length <= terminal_columns() else f"\n{INDENT}"
        click.echo(f"{INDENT}{project.styled()}{joined}{said}")


def _tell_of_lost(found: list[dict[str, Any]]) -> None:
    """Say how the files of projects come back that are not there any more."""
    lost = [store["project"] for store in found if store["project_status"] == "gone"]
    if not lost:
        return
    from pathlib import Path

    from mulligan.cli.render.streams import wrapped
    from mulligan.session_directory import ways_back

    said = f"{ways_back(Path(lost[0]))}{'; so for others' if len(lost) > 1 else ''}."
    click.echo(wrapped(clean(f"{lost[0]} is not there any more: {said}"), 0), err=True)


def _row(store: dict[str, Any]) -> list[Cell]:
    status = store["project_status"]
    return [
        Cell(clean(store["store"]), bold=True),
        Cell(clean(store["project"] or "")),
        Cell(STATUS[status], None if status == "here" else "yellow"),
        Cell(size(store["size_bytes"])),
        Cell(ago(store["last_used"])),
    ]
