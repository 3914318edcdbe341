"""mulligan stores."""

from __future__ import annotations

from typing import Any

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.find_store import state_home
from mulligan.cli.render.text import Cell, ago, clean, echo_columns, print_json, size
from mulligan.views.stores import stores_view

HEADERS = ("store", "project", "", "size", "last used")
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
        echo_columns([[Cell(h, dim=True) for h in HEADERS], *map(_row, found)])
    elif not damaged:
        click.echo("There is no store yet. `mulligan init` makes one.", err=True)
    for store in [] if call.json else damaged:
        click.echo(clean(store["problem"]), err=True)


def _row(store: dict[str, Any]) -> list[Cell]:
    status = store["project_status"]
    return [
        Cell(clean(store["store"]), bold=True),
        Cell(clean(store["project"] or "")),
        Cell(STATUS[status], None if status == "here" else "yellow"),
        Cell(size(store["size_bytes"])),
        Cell(ago(store["last_used"])),
    ]
