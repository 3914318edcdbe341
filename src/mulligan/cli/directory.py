"""Which directory holds the files of a session.

It is the one beside the store. A fork with a directory of its own is found from both ends: the
store names the directory, and the pointer in the directory names the store. Files are
touched only where both agree, so that neither a store nor a pointer that came from elsewhere can
lead a restore to a place its owner never chose.

A fork's directory that was moved is followed: the pointer in it has the directory's identity, which
a rename keeps, and no copy, archive or clone has.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from mulligan.pointer import Pointer, read_pointer

if TYPE_CHECKING:
    from mulligan import Session, Store


def workspace_of(
    store: Store, session: Session, here: Pointer | None, *, force: bool
) -> Path | None:
    """Return the directory of a session's files; None if the store is not beside any work.

    A fork's directory that was moved to ``here``, and is not where it was, is followed. With
    ``force`` it needs no pointer, and ``here`` may be a copy.
    """
    from mulligan.layout import NAME

    beside, own = Path(store.path or os.devnull), session.directory
    if own is None:
        return beside.parent if beside.name == NAME else None
    claimed = here.directory if here and here.session == session.name else own
    if (force and claimed.is_dir()) or (here and claimed != own and _was_moved(here, own, beside)):
        return claimed
    pointer = read_pointer(own)
    if claimed != own or pointer is None or not pointer.names(beside):
        raise _unconfirmed(session.name, own, claimed)
    return own


def _was_moved(here: Pointer, own: Path, store: Path) -> bool:
    """Whether this is the directory that the store knows by another name, which nothing has now."""
    return not os.path.lexists(own) and here.is_in_place and here.names(store)


def _unconfirmed(session: str, own: Path, claimed: Path) -> Exception:
    from mulligan.errors import UnsafeWorkspace

    hint = "Nothing was touched. --no-files leaves the files out; "
    take = "--force takes the directory all the same, if you are sure that it is the right one."
    if claimed != own:
        problem = f"was forked into {own}, and this is {claimed}"
    elif own.is_dir():
        problem = f"was forked into {own}, which does not point back to this store"
    else:
        problem = f"was forked into {own}, which is not there any more"
        take = "if it was moved, run the command in it."
    return UnsafeWorkspace(
        f"The session {session!r} {problem}.",
        hint=hint + take,
    )
