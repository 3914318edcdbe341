"""mulligan move-store."""

from __future__ import annotations

import os
from pathlib import Path

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.find_store import state_home, tell_of_finding
from mulligan.cli.render.text import clean, print_json
from mulligan.views.stores import moved_store_view

EXAMPLE = example("mulligan move-store", "mulligan move-store --inside")


@click.command("move-store", cls=Command, epilog=EXAMPLE)
@click.option("--outside", is_flag=True, help="Out of the project.")
@click.option("--inside", is_flag=True, help="Into the project, as .mulligan.")
@click.pass_obj
def command(call: CliContext, outside: bool, inside: bool) -> None:
    """Move the store out of its project (--outside, the default) or into it (--inside).

    The store is copied and compared before the original is deleted, so a crash at any moment leaves
    one complete store. No other process may have it open, and no restore may be pending. Forks
    still find it afterwards.
    """
    from mulligan.move_store import move_store

    if inside and outside:
        raise click.UsageError("--inside and --outside exclude each other.")
    store = _found(call)
    new = move_store(store, os.environ, inside=inside)
    if call.json:
        print_json(moved_store_view(store, new))
    elif call.quiet:
        click.echo(clean(str(new)))
    else:
        click.echo(
            clean(f"{'It is there already:' if new == store else 'Moved the store to'} {new}")
        )


def _found(call: CliContext) -> Path:
    from mulligan.layout import read_format
    from mulligan.locate.find import find_in, nearest

    state = state_home()
    if not call.store:
        found = nearest(Path.cwd(), state)
        tell_of_finding(found)
        return found.store
    place = Path(call.store).absolute()
    named = find_in(place, state, write=True)
    read_format(named.store if named else place)
    return named.store if named else place
