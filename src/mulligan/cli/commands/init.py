"""mulligan init."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from mulligan.cli.context import ACTOR, DEFAULT_SESSION, CliContext, Command, example, force_option
from mulligan.cli.find_store import state_home, tell_of_finding
from mulligan.cli.render.text import clean, print_json
from mulligan.views.stores import made_store_view

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
    directory and / are refused without --force. It is safe to run this again: an existing store
    stays unchanged.
    """
    import mulligan
    from mulligan.layout import NAME

    if inside and adopt:
        raise click.UsageError("--inside and --adopt exclude each other.")
    root = Path(directory or call.store or ".").absolute()
    if root.name != NAME and root.exists() and not root.is_dir():
        raise click.UsageError(f"{root} is not a directory.")
    _refuse_missing_parent(root)
    path = _existing(root) if adopt is None else None
    is_new = path is None and adopt is None
    before = _other(root, adopt.absolute()) if adopt is not None else None
    if path is None:
        if not call.force:
            _refuse_large(root)
            if not inside:
                _refuse_around_stores(root)
        path = _made(root, inside) if adopt is None else _adopted(root, adopt.absolute())
    with mulligan.open(path) as store:
        known = [session.name for session in store.sessions()]
        name = call.session or (DEFAULT_SESSION if not known else None)
        if name is not None and name not in known:
            store.session(name, actor=ACTOR)
        sessions = [session.name for session in store.sessions()]
    made = _ADOPTED if adopt else _MADE if is_new else _FOUND
    _print(call, path, root, made, sessions)
    if call.json or call.quiet:
        return
    if before is not None:
        _tell_of_before(root, before)
    if is_new:
        _tell_of_others(root)
    elif inside and path.name != NAME:
        click.echo("It is outside; `mulligan move-store --inside` moves it in.", err=True)


def _existing(root: Path) -> Path | None:
    """Return the store that a directory already has, complete or not."""
    from mulligan.layout import FORMAT
    from mulligan.locate.find import agree, copied, find_in

    found = find_in(root, state_home(), write=True)
    if found is None:
        return None
    if found.pointer and not agree(found.store, found.pointer):
        raise copied(found.pointer, found.store)
    tell_of_finding(found)
    return found.store if found.pointer or (found.store / FORMAT).is_file() else None


def _made(root: Path, inside: bool) -> Path:
    import mulligan
    from mulligan.layout import NAME
    from mulligan.locate.registry import note_inside
    from mulligan.opener import make_outside

    state = state_home()
    # A store that was started inside the project is completed there.
    if not inside and root.name != NAME and not os.path.lexists(root / NAME):
        root.mkdir(parents=True, exist_ok=True)
        return make_outside(root, state)
    with mulligan.open(root) as store:
        path = Path(str(store.path))
    if inside:
        note_inside(state, path)
    return path


def _adopted(root: Path, store: Path) -> Path:
    """Link a directory and a store to each other."""
    from mulligan.errors import UnsafeWorkspace
    from mulligan.layout import NAME, read_format
    from mulligan.locate.pointer import write_pointer
    from mulligan.locate.project import remember

    read_format(store)
    if store.name == NAME or (root / NAME).is_dir():
        raise UnsafeWorkspace(
            f"{root} cannot adopt {store}: a store inside a project belongs to that directory.",
            hint="Nothing was changed. `mulligan move-store --outside` moves it out first.",
        )
    remember(store, root)
    write_pointer(root, str(store))
    return store


def _other(root: Path, store: Path) -> Path | None:
    """Return the store of a directory if it is a different one."""
    from mulligan.errors import StoreNotFound
    from mulligan.locate.find import find_in

    try:
        found = find_in(root, state_home(), write=False) if root.is_dir() else None
    except StoreNotFound:  # its pointer leads nowhere
        return None
    return found.store if found and found.store.resolve() != store.resolve() else None


def _tell_of_before(directory: Path, store: Path) -> None:
    said = f"Until now {directory} had the store {store}, which is kept;"
    click.echo(clean(f"{said} `mulligan init --adopt {store}` goes back to it."), err=True)


def _tell_of_others(directory: Path) -> None:
    """Report a store in a parent directory: it covered this directory until now."""
    from mulligan.layout import NAME

    above = next((d for d in directory.parents if (d / NAME).exists()), None)
    if above is not None:
        said = f"There is a store above, in {above}; from here on down this one is used."
        click.echo(clean(said), err=True)


def _refuse_missing_parent(root: Path) -> None:
    """Refuse to make more than one directory: a missing parent is most likely a typo."""
    if root.parent.is_dir():
        return
    missing = next(p for p in (*reversed(root.parents), root) if not p.is_dir())
    raise click.UsageError(
        f"There is no directory {missing}, and nothing was made. Check the path, or make it "
        f"first: `mkdir -p {shlex.quote(str(root))}`."
    )


def _refuse_large(directory: Path) -> None:
    """Refuse a directory that every later command would refuse as a workspace."""
    from mulligan.errors import UnsafeWorkspace
    from mulligan.layout import NAME
    from mulligan.workspace.workspace import check_root

    home = Path(os.environ.get("HOME", os.devnull))
    place = directory.parent if directory.name == NAME else directory
    try:
        if place.is_dir():
            check_root(place, None, home, force=False)
    except UnsafeWorkspace as error:
        raise UnsafeWorkspace(
            str(error),
            hint="No store was made. `mulligan init DIR` makes one for one project. With --force "
            "it is made here, and commands that work on files then want --no-files or --force.",
        ) from error


def _refuse_around_stores(directory: Path) -> None:
    """Refuse a project that contains the stores: deleting its files would delete them."""
    from mulligan.errors import UnsafeWorkspace
    from mulligan.opener import NO_STATE

    state, real = state_home().resolve(), directory.resolve()
    if real.name == ".mulligan" or not state.is_relative_to(real):
        return
    raise UnsafeWorkspace(f"The place of the stores, {state}, is inside of {real}.", hint=NO_STATE)


def _print(call: CliContext, path: Path, root: Path, made: str, sessions: list[str]) -> None:
    if call.json:
        print_json(made_store_view(path, root, sessions, created=made is _MADE))
    elif not call.quiet:
        click.echo(clean(f"{made} {path}"))
        click.echo("Take a checkpoint with `mulligan checkpoint`, look with `mulligan log`.")
