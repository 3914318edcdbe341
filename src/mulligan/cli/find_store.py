"""Finding the store of the current directory, and reporting anything unusual about it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mulligan.locate.find import Found


def state_home() -> Path:
    """Return the directory of the stores that are outside their projects."""
    from mulligan.locate.registry import state_directory

    return state_directory(os.environ)


def danger_inside(store: Path) -> str | None:
    """Return a warning that a store is inside its project; None if it is not, or was put there."""
    from mulligan.layout import NAME
    from mulligan.locate.registry import is_noted

    if store.name != NAME or is_noted(state_home(), store):
        return None
    return (
        "It is inside the project, where `git clean -ffdx` deletes it; "
        "`mulligan move-store --outside` moves it out."
    )


def tell_of_finding(found: Found) -> None:
    """Report a missing pointer, or a moved directory or store.

    Not that a read-only directory has no pointer: every command would say it. `init` and `status`
    do.
    """
    from mulligan.cli.render.text import clean
    from mulligan.locate.find import Note, finding_text

    said = finding_text(found)
    if said is not None and found.note is not Note.NOT_PUT_BACK:
        click.echo(clean(said), err=True)
