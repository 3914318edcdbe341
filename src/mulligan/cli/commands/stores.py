"""mulligan stores."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.find_store import state_home
from mulligan.cli.render.text import Cell, ago, clean, echo_columns, print_json, size, size_on_disk

if TYPE_CHECKING:
    from mulligan.locate.registry import Known

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

    Those that `mulligan init` made, and those inside of their projects that it knows of. The store
    of a project that is gone can be given to another directory with `mulligan init --adopt STORE`,
    or deleted by hand.
    """
    from mulligan.locate.registry import damaged_stores, known_stores

    state = state_home()
    _check_readable(state)
    found = [_fields(known) for known in known_stores(state)]
    damaged = [{"store": str(path), "problem": why} for path, why in damaged_stores(state)]
    if call.json:
        print_json({"stores": found, "damaged": damaged})
    elif call.quiet:
        for store in found:
            click.echo(clean(store["store"]))
    elif found:
        echo_columns([[Cell(h, dim=True) for h in HEADERS], *map(_row, found)])
    elif not damaged:
        click.echo("There is no store yet. `mulligan init` makes one.", err=True)
    for store in [] if call.json else damaged:
        click.echo(clean(store["problem"]), err=True)


def _check_readable(state: Path) -> None:
    """Refuse to list what this user may not look at: none found is not none there."""
    from mulligan.locate.registry import STORES

    with suppress(FileNotFoundError, NotADirectoryError):
        os.scandir(state / STORES).close()


def _fields(known: Known) -> dict[str, Any]:
    return {
        "store": str(known.path),
        "id": known.id,
        "inside": known.inside,
        "project": known.project and str(known.project),
        "project_status": _project_status(known),
        "size_bytes": size_on_disk(known.path),
        "last_used": datetime.fromtimestamp(_last_used(known.path), UTC),
    }


def _last_used(store: Path) -> float:
    """Return when a store was last written; one whose journal is gone is listed like any other."""
    try:
        return (store / "journal" / "data.mdb").stat().st_mtime
    except OSError:
        return store.stat().st_mtime


def _project_status(known: Known) -> str:
    """Return whether the project is there, and the one that the store knows."""
    from mulligan.locate.identity import identity_of

    place = next((place for place in known.places if place.session is None), None)
    if known.inside:
        return "here"
    if place is None:
        return "unknown"
    try:
        found = identity_of(Path(place.path))
    except OSError:
        return "gone"
    return "here" if place.identity.matches(found) else "renewed"


def _row(store: dict[str, Any]) -> list[Cell]:
    status = store["project_status"]
    return [
        Cell(clean(store["store"]), bold=True),
        Cell(clean(store["project"] or "")),
        Cell(STATUS[status], None if status == "here" else "yellow"),
        Cell(size(store["size_bytes"])),
        Cell(ago(store["last_used"])),
    ]
