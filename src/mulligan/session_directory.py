"""Which directory holds the files of a session.

Store and directory must agree (``mulligan.locate.find``): the store names the directory, by its
path or its identity, and the pointer in the directory names the store. A store inside its
project, as ``PROJECT/.mulligan``, has the files of that directory.

A moved directory is recognised: the pointer in it holds the directory's identity, which survives a
rename but not a copy, an archive or a clone.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mulligan.layout import NAME
from mulligan.locate.find import Found, agree, copied, find_in
from mulligan.locate.pointer import Pointer, read_pointer
from mulligan.locate.project import project_of

if TYPE_CHECKING:
    from mulligan.session import Session
    from mulligan.store import Store

HINT = "Nothing was touched. --no-files leaves the files out; "
FORCE = "--force accepts the directory, if you are sure that it is the right one."


class Standing(msgspec.Struct, frozen=True):
    """Where a call comes from: the directory, the pointer it followed, and where stores are.

    ``is_named`` says whether the store was named, not found. ``tell`` is called with a store that
    was found in an unusual way.
    """

    here: Path
    state: Path
    pointer: Pointer | None = None
    is_named: bool = False
    tell: Callable[[Found], None] = lambda found: None


def ways_back(directory: Path) -> str:
    """Return how the files of a project that was deleted come back, as a part of a sentence."""
    named = shlex.quote(str(directory))
    return f"`mkdir {named}`, `cd {named}`, and `mulligan restore @latest` bring its files back"


def workspace_of(store: Store, session: Session, standing: Standing, *, force: bool) -> Path | None:
    """Return the directory of a session's files; None if the store belongs to no directory.

    A directory that was moved to the current one is recognised. With ``force``, it needs no
    pointer and may be a copy.
    """
    path, own = Path(store.path or os.devnull), session.files.directory
    if own is not None:
        return _of_fork(path, session.name, own, standing, force=force)
    if path.name == NAME:
        return path.parent if force else _beside(path, session, standing)
    return _of_project(path, session, standing, force=force)


def _of_fork(store: Path, session: str, own: Path, standing: Standing, *, force: bool) -> Path:
    here = standing.pointer
    claimed = here.directory if here and here.session == session else own
    # --force comes first: it is how a copy on another disk is accepted.
    if (force and claimed.is_dir()) or (here and claimed != own and _was_moved(here, own, store)):
        return claimed
    # A pointer that was deleted is recreated; one that names another store is never overwritten.
    pointer = read_pointer(own) or _put_back(store, own, standing)
    if claimed != own or pointer is None or not pointer.names(store):
        raise _unconfirmed(session, own, claimed)
    return own


def _was_moved(here: Pointer, own: Path, store: Path) -> bool:
    """Whether this is the store's directory under a new path, and nothing is at the old path."""
    return not os.path.lexists(own) and here.is_in_place and here.names(store)


def _beside(store: Path, session: Session, standing: Standing) -> Path:
    """Return the directory that contains the store, unless the session's files are elsewhere.

    A program may open a store in one directory for the files of another. Nothing there points
    back to the store, so it counts only when a command runs in that directory and names the store.
    """
    beside = store.parent.resolve()
    # A store found from the current directory is always that of the directory around it.
    if not standing.is_named or standing.here.is_relative_to(beside):
        return store.parent
    return _captured_elsewhere(session, beside, standing) or store.parent


def _of_project(store: Path, session: Session, standing: Standing, *, force: bool) -> Path | None:
    """Return the project directory of a store that is outside its project."""
    here, place = standing.pointer, project_of(store)
    # The command stands in the project itself, so no other directory can be meant.
    if here is not None and here.session is None:
        if not force and not agree(store, here):
            raise copied(here, store)
        return here.directory
    if place is None:
        return _captured_elsewhere(session, None, standing)
    claimed = Path(place.path)
    pointer = read_pointer(claimed) or _put_back(store, claimed, standing)
    confirmed = pointer is not None and agree(store, pointer)
    if not confirmed and not (force and claimed.is_dir()):
        raise _lost(store, claimed)
    return claimed


def _put_back(store: Path, directory: Path, standing: Standing) -> Pointer | None:
    """Restore a missing or damaged pointer in a directory that this store knows."""
    if not directory.is_dir():
        return None
    found = find_in(directory, standing.state, write=True)
    if found is None or found.pointer is None or not found.pointer.names(store):
        return None
    standing.tell(found)
    return found.pointer


def _captured_elsewhere(session: Session, beside: Path | None, standing: Standing) -> Path | None:
    """Return where the session's files were captured, if that is not beside the store.

    None if they were captured there, or that directory is gone or has a store of its own: then
    the project was moved, or copied together with its store. Raises ``UnsafeWorkspace`` unless
    the command is called from there.
    """
    held = session.internal.newest_files()
    root = Path(held.coverage.root) if held and held.coverage else None
    # A directory with a store of its own belongs to that store.
    if root is None or root == beside or not root.is_dir() or os.path.lexists(root / NAME):
        return None
    if standing.here.is_relative_to(root):
        return root
    from mulligan.errors import UnsafeWorkspace

    raise UnsafeWorkspace(
        f"The files of the session {session.name!r} are those of {root}, not beside its store.",
        hint=HINT + "Run the command in that directory.",
    )


def _lost(store: Path, directory: Path) -> Exception:
    from mulligan.errors import UnsafeWorkspace

    problem, take = "does not point back to it", FORCE
    if not directory.is_dir():
        problem = "is not there"
        take = (
            f"if it was moved, run the command in it. If it was deleted: {ways_back(directory)}. "
            "Or write them elsewhere: `mulligan restore @latest --to DIR`, with this --store."
        )
    return UnsafeWorkspace(
        f"The store {store} holds the files of {directory}, which {problem}.", hint=HINT + take
    )


def _unconfirmed(session: str, own: Path, claimed: Path) -> Exception:
    from mulligan.errors import UnsafeWorkspace

    take = FORCE
    if claimed != own:
        problem = f"was forked into {own}, and this is {claimed}"
    elif own.is_dir():
        problem = f"was forked into {own}, which does not point back to this store"
    else:
        problem = f"was forked into {own}, which is not there any more"
        take = (
            "if it was moved, run the command in it. If it was deleted: "
            f"`mulligan -s {session} restore @latest --to DIR` writes its files elsewhere."
        )
    return UnsafeWorkspace(f"The session {session!r} {problem}.", hint=HINT + take)
