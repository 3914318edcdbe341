"""mulligan init."""

from __future__ import annotations

import os
from pathlib import Path

import click

from mulligan.cli.context import ACTOR, DEFAULT_SESSION, Call, Command, example, force_option
from mulligan.cli.render import print_json


@click.command("init", cls=Command, epilog=example("mulligan init", "mulligan init ~/work/agent"))
@click.argument("directory", metavar="[DIR]", required=False)
@force_option
@click.pass_obj
def command(call: Call, directory: str | None) -> None:
    """Make a store in DIR (here, if none is given) with a first session.

    Checkpoints will hold the files of DIR, so it is the directory of one project; the home
    directory and / are refused unless forced. Running it again is fine: what is there stays as
    it is.
    """
    import mulligan
    from mulligan.layout import FORMAT, locate

    root = Path(directory or call.store or ".").absolute()
    is_new = not (locate(root) / FORMAT).is_file()
    if is_new and not call.force:
        _refuse_large(locate(root).parent)
    with mulligan.open(root) as store:
        known = [session.name for session in store.sessions()]
        name = call.session or (DEFAULT_SESSION if not known else None)
        if name is not None and name not in known:
            store.session(name, actor=ACTOR)
        sessions = [session.name for session in store.sessions()]
        _print(call, str(store.path), is_new, sessions)
    if is_new and not call.json and not call.quiet:
        _tell_of_others(locate(root).parent)


def _tell_of_others(directory: Path) -> None:
    """Say that there is a store above: it held what is here, and will not any more."""
    from mulligan.layout import NAME

    above = next((d for d in directory.parents if (d / NAME).exists()), None)
    if above is not None:
        said = f"There is a store above, in {above}; from here on down this one is used."
        click.echo(said, err=True)


def _refuse_large(directory: Path) -> None:
    """Refuse a directory that would be refused as a workspace by every command after."""
    from mulligan.errors import UnsafeWorkspace
    from mulligan.workspace.workspace import check_root

    home = Path(os.environ.get("HOME", os.devnull))
    try:
        if directory.is_dir():
            check_root(directory, None, home, force=False)
    except UnsafeWorkspace as error:
        raise UnsafeWorkspace(
            str(error),
            hint="No store was made. `mulligan init DIR` makes one for one project. With --force "
            "it is made here, and commands that work on files then want --no-files or --force.",
        ) from error


def _print(call: Call, path: str, is_new: bool, sessions: list[str]) -> None:
    if call.json:
        print_json({"store": path, "created": is_new, "sessions": sessions})
    elif not call.quiet:
        made = "Made a store at" if is_new else "There is a store already, left as it is:"
        click.echo(f"{made} {path}")
        click.echo("Take a checkpoint with `mulligan checkpoint`, look with `mulligan log`.")
