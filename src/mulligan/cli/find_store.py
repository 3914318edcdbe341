"""Finding the store of the current directory, and reporting anything unusual about it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

if TYPE_CHECKING:
    from mulligan.locate.find import Found
    from mulligan.locate.pointer import Pointer


class Standing(msgspec.Struct, frozen=True):
    """Where a command was called: the pointer it followed, and whether the store was named."""

    state: Path
    pointer: Pointer | None = None
    is_named: bool = False


def state_home() -> Path:
    """Return the directory of the stores that are outside their projects."""
    from mulligan.locate.registry import state_directory

    return state_directory(os.environ)


def nearest(state: Path) -> Found:
    """Return the store of this directory, or of the nearest parent that has one."""
    from mulligan.errors import StoreNotFound
    from mulligan.layout import NAME
    from mulligan.locate.find import find_in
    from mulligan.locate.registry import known_stores

    start, known = Path.cwd(), None
    for directory in (start, *start.parents):
        if known is None and not (directory / NAME).exists():
            known = list(known_stores(state))  # once for all directories on the way up
        # With write: a pointer that is put back now saves the search in all later commands.
        found = find_in(directory, state, write=True, known=known)
        if found is not None:
            return found
    raise StoreNotFound(f"There is no store in {start} or any directory above it.")


def tell_of_finding(found: Found) -> None:
    """Report a missing pointer, or a moved directory or store."""
    from mulligan.cli.render.text import clean
    from mulligan.locate.find import Note

    here, store = found.directory, found.store
    said = {
        Note.PUT_BACK: f"The pointer {here}/.mulligan was gone and was put back; "
        f"the store is {store}.",
        Note.RENEWED: f"{here} is a new directory where the project of the store {store} was; "
        "that store is used, and the pointer was put back.",
        Note.NOT_PUT_BACK: f"The pointer {here}/.mulligan is not there and cannot be written; "
        f"the store is {store}.",
        Note.STASHED: f"The pointer {here}/.mulligan is gone, perhaps into a git stash, and was "
        f"not put back, so that `git stash pop` works; the store is {store}.",
        Note.MOVED: f"This project was moved to {here}; its store {store} knows that now.",
        Note.STORE_MOVED: f"The store was moved to {store}; the pointer in {here} was updated.",
    }
    if found.note is not None:
        click.echo(clean(said[found.note]), err=True)
