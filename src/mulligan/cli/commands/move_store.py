"""mulligan move-store."""

from __future__ import annotations

from pathlib import Path

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.find_store import nearest, state_home, tell_of_finding
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
    from mulligan.layout import NAME
    from mulligan.move_store import move_inside, move_outside

    if inside and outside:
        raise click.UsageError("--inside and --outside exclude each other.")
    state, store = state_home(), _found(call)
    _refuse_pending(store)
    is_inside = store.name == NAME
    if is_inside == inside:
        new, moved = store, False
    elif is_inside:
        new, moved = move_outside(store, state), True
    else:
        new, moved = move_inside(store, _project(store), state), True
    if call.json:
        print_json(moved_store_view(store, new))
    elif call.quiet:
        click.echo(clean(str(new)))
    else:
        click.echo(clean(f"{'Moved the store to' if moved else 'It is there already:'} {new}"))


def _found(call: CliContext) -> Path:
    from mulligan.layout import read_format
    from mulligan.locate.find import find_in

    state = state_home()
    if not call.store:
        found = nearest(state)
        tell_of_finding(found)
        return found.store
    place = Path(call.store).absolute()
    named = find_in(place, state, write=True)
    read_format(named.store if named else place)
    return named.store if named else place


def _project(store: Path) -> Path:
    """Return the directory of the project, which must point to the store."""
    from mulligan.errors import UnsafeWorkspace
    from mulligan.locate.find import agree, find_in
    from mulligan.locate.project import project_of

    place = project_of(store)
    found = find_in(Path(place.path), state_home(), write=True) if place else None
    if found is None or found.pointer is None or not agree(store, found.pointer):
        where = f"{place.path} does not point back to it" if place else "it knows no project"
        raise UnsafeWorkspace(
            f"The store {store} cannot be moved into its project: {where}.",
            hint="Nothing was moved. `mulligan init --adopt STORE` gives it a project.",
        )
    return found.directory


def _refuse_pending(store: Path) -> None:
    """Refuse a store with a pending restore: its locks do not move with it."""
    import mulligan
    from mulligan.errors import RestorePending

    with mulligan.open(store, create=False, read_only=True) as opened:
        pending = [session.name for session in opened.sessions() if session.pending]
    if pending:
        raise RestorePending(
            f"A restore of files is pending in {', '.join(pending)}.",
            hint="Nothing was moved. `mulligan status` says more; finish or undo it first.",
        )
