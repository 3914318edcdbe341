"""mulligan init."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.context import ACTOR, CliContext, Command, example, force_option
from mulligan.cli.find_store import danger_inside, tell_of_finding
from mulligan.cli.render.text import clean, print_json
from mulligan.views.stores import made_store_view

if TYPE_CHECKING:
    from mulligan.make_store import StoreMade

_MADE = "Made a store at"
_FOUND = "There is a store already, unchanged:"
_ADOPTED = "From now on the store of this directory is"
EXAMPLE = example(
    "mulligan init",
    "mulligan init ~/work/agent",
    "mulligan init --adopt ~/backup/agent-0a1b2c3d4e5f",
)


@click.command("init", cls=Command, epilog=EXAMPLE)
@click.argument("directory", metavar="[DIR]", required=False)
@click.option(
    "--inside", is_flag=True, help="Keep the store in DIR/.mulligan instead of outside the project."
)
@click.option(
    "--adopt",
    type=click.Path(path_type=Path),
    metavar="STORE",
    help="Use this store for DIR from now on, whatever its project was.",
)
@force_option
@click.pass_obj
def command(call: CliContext, directory: str | None, inside: bool, adopt: Path | None) -> None:
    """Make a store for DIR (here, if none is given) with a first session.

    The store is created in $XDG_STATE_HOME/mulligan (~/.local/state/mulligan), where nothing done
    to DIR can delete it. DIR gets a small file .mulligan that points to it. With --inside, the
    store is DIR/.mulligan, for sandboxes that see nothing else.

    Checkpoints will hold the files of DIR, so DIR should be the directory of one project; the home
    directory and / are refused without --force. A missing DIR is made, but not its parents. It is
    safe to run this again: an existing store stays unchanged.
    """
    from mulligan.make_store import adopt_store, make_store

    if inside and adopt:
        raise click.UsageError("--inside and --adopt exclude each other.")
    root = _root(directory or call.store or ".")
    is_made = not root.exists()
    shared: dict[str, Any] = {"session": call.session, "actor": ACTOR, "force": call.force}
    if adopt is not None:
        made, said = adopt_store(root, adopt, os.environ, **shared), _ADOPTED
    else:
        made = make_store(root, os.environ, inside=inside, **shared)
        said = _MADE if made.is_new else _FOUND
    # After the work: a refused directory must not report a pointer as put back and then fail.
    if made.found is not None:
        tell_of_finding(made.found)
    if call.json:
        print_json(made_store_view(made.store, root, made.sessions, created=made.is_new))
    elif not call.quiet:
        if is_made:
            click.echo(clean(f"There was no directory {root}; it was made."), err=True)
        click.echo(clean(f"{said} {made.store}"))
        click.echo("`mulligan checkpoint` takes a checkpoint; `mulligan log` lists them.")
        _tell_more(made, inside=inside)


def _tell_more(made: StoreMade, *, inside: bool) -> None:
    """Name the other stores that the directory had, and how to get what was asked for."""
    from mulligan.layout import NAME

    if (old := made.replaced) is not None:
        said = f"Until now {made.directory} had the store {old}, which is kept;"
        click.echo(clean(f"{said} `mulligan init --adopt {old}` goes back to it."), err=True)
    if made.store.name != NAME and not (made.directory / NAME).exists():
        said = f"{made.directory} cannot be written, so it has no pointer to the store;"
        click.echo(clean(f"{said} the store is found by its path."), err=True)
    if made.above is not None:
        said = f"There is a store above, in {made.above}; from here on down this one is used."
        click.echo(clean(said), err=True)
    if inside and not made.is_new and made.store.name != NAME:
        click.echo("It is outside; `mulligan move-store --inside` moves it in.", err=True)
    if not inside and not made.is_new and (danger := danger_inside(made.store)):
        click.echo(danger, err=True)


def _root(named: str) -> Path:
    """Return the directory that was named; refuse one that is most likely a typo."""
    from mulligan.layout import NAME

    root = Path(named).absolute()
    if root.name != NAME and root.exists() and not root.is_dir():
        raise click.UsageError(f"{root} is not a directory.")
    _refuse_missing_parent(root)
    return root


def _refuse_missing_parent(root: Path) -> None:
    """Refuse to make more than one directory: a missing parent is most likely a typo."""
    if root.parent.is_dir():
        return
    missing = next(p for p in (*reversed(root.parents), root) if not p.is_dir())
    raise click.UsageError(
        f"There is no directory {missing}, and nothing was made. Check the path, or make it "
        f"first: `mkdir -p {shlex.quote(str(root))}`."
    )
