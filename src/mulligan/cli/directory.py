"""Which directory holds the files of a session.

It is the one beside the store. A fork with a directory of its own is found from both ends: the
store names the directory, and ``.mulligan/FORK`` in the directory points to the store. Files are
touched only where both agree, so that neither a store nor a pointer that came from elsewhere can
lead a restore to a place its owner never chose.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mulligan import Session, Store


FORK = "FORK"
"""The name of the file that points to a store; a directory with it holds no store."""


@dataclass(frozen=True)
class Pointer:
    """Says in a fork's directory which store and session it belongs to."""

    directory: Path
    store: str
    session: str


def read_pointer(directory: Path) -> Pointer | None:
    """Return where a fork's directory points to; None if it is no fork's."""
    from mulligan.layout import NAME

    try:
        said = json.loads((directory / NAME / FORK).read_bytes())
        return Pointer(directory.resolve(), str(said["store"]), str(said["session"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_pointer(directory: Path, store: str, session: str) -> None:
    """Let a fork's directory point to its store."""
    from mulligan.layout import NAME

    holder = directory / NAME
    holder.mkdir(mode=0o700)
    (holder / ".gitignore").write_text("*\n")
    (holder / FORK).write_text(json.dumps({"store": store, "session": session}) + "\n")


def workspace_of(
    store: Store, session: Session, here: Pointer | None, *, force: bool
) -> Path | None:
    """Return the directory of a session's files; None if the store is not beside any work.

    With ``force`` a fork's directory needs no pointer, and may have been moved or copied to
    ``here``.
    """
    from mulligan.layout import NAME

    beside, own = Path(store.path or os.devnull), session.directory
    if own is None:
        return beside.parent if beside.name == NAME else None
    claimed = here.directory if here and here.session == session.name else own
    if force:
        return claimed
    pointer = read_pointer(own)
    if claimed != own or pointer is None or not _is_same(pointer.store, beside):
        raise _unconfirmed(session.name, own, claimed)
    return own


def _is_same(one: str, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _unconfirmed(session: str, own: Path, claimed: Path) -> Exception:
    from mulligan.errors import UnsafeWorkspace

    if claimed != own:
        problem = f"was forked into {own}, and this is {claimed}"
    elif own.is_dir():
        problem = f"was forked into {own}, which does not point back to this store"
    else:
        problem = f"was forked into {own}, which is not there any more"
    return UnsafeWorkspace(
        f"The session {session!r} {problem}.",
        hint="Nothing was touched. --no-files leaves the files out; "
        "--force takes the directory all the same, if you are sure that it is the right one.",
    )
