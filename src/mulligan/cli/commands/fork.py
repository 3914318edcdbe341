"""mulligan fork."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mulligan.cli.context import CliContext, Command, example, force_option
from mulligan.cli.render.text import Cell, clean, place, print_json
from mulligan.views.sessions import fork_view

if TYPE_CHECKING:
    from mulligan import Session

EXAMPLE = example(
    "mulligan fork @latest --name bold",
    "mulligan fork tests-green --to ../bold",
    "branch=$(mulligan fork tests-green)",
)


@click.command("fork", cls=Command, epilog=EXAMPLE)
@click.argument("point")
@click.option("--name", help="The new session's name; one is found if none is given.")
@click.option(
    "--to",
    "directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the files of POINT into this new or empty directory, for the new session alone.",
)
@force_option
@click.pass_obj
def command(call: CliContext, point: str, name: str | None, directory: Path | None) -> None:
    """Make a new session that continues from POINT and print its name.

    It shares all storage with its parent, so it costs next to nothing. With --to it has its own
    files, complete and independent, and commands in that directory work on it. Without --to it
    has the same directory as its parent.
    """
    made = _fork(call, point, name, directory)
    parent = made.parent
    if call.json:
        print_json(fork_view(made, directory and directory.resolve()))
    elif call.bare or parent is None:
        click.echo(made.name)
    else:
        click.echo(f"{Cell(clean(made.name), bold=True).styled()} forked from {place(parent)}")
        click.echo(_how_to_use(made.name, directory))


def _fork(call: CliContext, point: str, name: str | None, directory: Path | None) -> Session:
    from mulligan.cli.find_store import remember_fork

    if directory is None:
        return call.open_session().fork(point, name)
    session = call.open_session(files=True)
    if call.directory is None:
        raise _no_workspace(session)
    with call.working():
        made = session.fork(point, name, directory, pointer=True)
    remember_fork(Path(call.store_path), directory.resolve(), made.name)
    return made


def _no_workspace(session: Session) -> Exception:
    from mulligan.errors import UnsafeWorkspace

    return UnsafeWorkspace(
        f"The session {session.name!r} has no files to fork: its store knows no project.",
        hint="Fork the state alone, without --to.",
    )


def _how_to_use(name: str, directory: Path | None) -> str:
    if directory is None:
        return f"Use it with `-s {name}`."
    return f"Its files are in {clean(str(directory))}: commands there work on it."
