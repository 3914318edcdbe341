"""Which directory holds the files of a session.

It is the one beside the store. A fork with a directory of its own is found from both ends: the
store names the directory, and ``.mulligan/FORK`` in the directory points to the store. Files are
touched only where both agree, so that neither a store nor a pointer that came from elsewhere can
lead a restore to a place its owner never chose.

A fork's directory that was moved is followed: the pointer in it has the number of its inode, which
a rename keeps, and no copy, archive or clone has.
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
    """Says in a fork's directory which store and session it belongs to.

    ``made_for`` is the device and the inode of the directory that it was written into; None if an
    earlier version wrote it.
    """

    directory: Path
    store: str
    session: str
    made_for: tuple[int, int] | None = None

    @property
    def is_in_place(self) -> bool:
        """Whether it is in the very directory that it was written into, wherever that is now."""
        return self.made_for == _identity(self.directory)


def read_pointer(directory: Path) -> Pointer | None:
    """Return where a fork's directory points to; None if it is no fork's."""
    from mulligan.layout import NAME

    try:
        said = json.loads((directory / NAME / FORK).read_bytes())
        made_for = (int(said["device"]), int(said["inode"])) if "inode" in said else None
        return Pointer(directory.resolve(), str(said["store"]), str(said["session"]), made_for)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_pointer(directory: Path, store: str, session: str) -> None:
    """Let a fork's directory point to its store."""
    from mulligan.layout import NAME

    holder = directory / NAME
    holder.mkdir(mode=0o700)
    (holder / ".gitignore").write_text("*\n")
    device, inode = _identity(directory)
    said = {"store": store, "session": session, "device": device, "inode": inode}
    (holder / FORK).write_text(json.dumps(said) + "\n")


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
    if claimed != own or pointer is None or not _is_same(pointer.store, beside):
        raise _unconfirmed(session.name, own, claimed)
    return own


def _was_moved(here: Pointer, own: Path, store: Path) -> bool:
    """Whether this is the directory that the store knows by another name, which nothing has now."""
    return not os.path.lexists(own) and here.is_in_place and _is_same(here.store, store)


def _identity(directory: Path) -> tuple[int, int]:
    status = directory.stat()
    return status.st_dev, status.st_ino


def _is_same(one: str, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


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
