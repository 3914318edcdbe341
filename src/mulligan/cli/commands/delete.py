"""mulligan delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mulligan.cli.confirm import can_ask, confirm
from mulligan.cli.context import CliContext, Command, example, yes_option
from mulligan.cli.render.text import SHORT_ID, clean, plural, print_json
from mulligan.views.checkpoints import deleted_view

if TYPE_CHECKING:
    from mulligan import Checkpoint, Session, Store

EXAMPLE = example("mulligan delete old-run", "mulligan delete main tests-green @latest~3")


@click.command("delete", cls=Command, epilog=EXAMPLE)
@click.argument("name", metavar="SESSION")
@click.argument("points", nargs=-1, metavar="[POINT]...")
@yes_option
@click.pass_obj
def command(call: CliContext, name: str, points: tuple[str, ...], yes: bool) -> None:
    """Delete a session, or some of its checkpoints.

    Forks of a session stay whole: their part of it is kept. A checkpoint that is pinned or the
    newest one, that a fork has, too, or that an undo or an operation needs, cannot be deleted;
    deleting one leaves the events around it. The next `mulligan prune` erases the bytes that
    nothing else holds.

    It cannot be undone. It asks first; without a terminal, --yes is needed.
    """
    store = call.open_store()
    found = store.session(name, create=False)
    taken = _delete_checkpoints(call, store, found, points, yes=yes) if points else None
    if taken is None:
        _ask(call, f"Delete the session {name!r}? It cannot be undone.", yes=yes)
        store.delete(name)
    if call.json:
        print_json(deleted_view(name, taken))
    elif not call.quiet:
        what = f"the session {name!r}"
        if taken is not None:
            what = f"{plural(len(taken), 'checkpoint')} of {what}"
        click.echo(clean(f"Deleted {what}. `mulligan prune` erases what nothing else holds."))


def _delete_checkpoints(
    call: CliContext, store: Store, session: Session, points: tuple[str, ...], *, yes: bool
) -> list[Checkpoint]:
    from mulligan.upkeep import delete_checkpoints

    chosen = [session.checkpoints.at(point) for point in points]
    names = ", ".join(f"{one.id[:SHORT_ID]} (#{one.seq})" for one in chosen)
    _ask(call, f"Delete {names}? It cannot be undone.", yes=yes)
    return delete_checkpoints(store, session, points)


def _ask(call: CliContext, question: str, *, yes: bool) -> None:
    if not yes and not can_ask(call):
        raise click.UsageError(
            "Deleting cannot be undone, and there is no terminal to ask on: --yes deletes it."
        )
    confirm(call, clean(question), yes=yes, default=False)
