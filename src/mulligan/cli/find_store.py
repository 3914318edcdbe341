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


def nearest_store(here: Path) -> Found:
    """Return the store of a directory, or of the nearest parent that has one.

    If there is none, the error names a project below that was deleted and whose store is kept.
    """
    from mulligan.errors import StoreNotFound
    from mulligan.locate.find import nearest

    try:
        return nearest(here, state_home())
    except StoreNotFound as error:
        if error.hint == StoreNotFound.default_hint:
            error.hint = f"{error.hint} {_lost_below(here)}".rstrip()
        raise


def _lost_below(here: Path) -> str:
    """Return how projects below a directory come back that were deleted; empty without any."""
    from mulligan.locate.registry import known_stores
    from mulligan.session_directory import ways_back

    real = here.resolve()
    projects = [known.project for known in known_stores(state_home())]
    lost = [p for p in projects if p and p.is_relative_to(real) and not p.exists()]
    if len(lost) > 1:
        return "Stores of projects below that are gone are kept: `mulligan stores` lists them."
    return f"The store of {lost[0]}, which is gone, is kept: {ways_back(lost[0])}." if lost else ""


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
