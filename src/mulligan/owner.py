"""Files of a store belong to the user whose store it is, also those that root makes.

Root writes stores of others: in a container, or with sudo. What it left as its own, such as a pack
or the compact copy of a journal, would lock the owner out.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR, S_ISREG


def open_as_owner(file: str | Path, flags: int, home: str | Path | None = None) -> int:
    """Open a file of a store; one that root makes gets the owner of its directory, or of another.

    ``home`` is where the file will be moved to. A link is refused.
    """
    # The owner of the directory could lead root to any other file by a link.
    handle = os.open(file, flags | os.O_NOFOLLOW, 0o600)
    if os.geteuid() == 0:
        with suppress(OSError):  # refused on some network file systems
            _give(handle, home or os.path.dirname(file))
    return handle


def make_directory(directory: str | Path) -> None:
    """Make a directory of a store if it is missing; one that root makes gets the owner of the next.

    A directory of root would lock the owner out from what comes into it.
    """
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        if not os.path.isdir(directory):
            raise
        return
    if os.geteuid() == 0:
        with suppress(OSError):
            handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                _give(handle, os.path.dirname(directory))
            finally:
                os.close(handle)


def _give(handle: int, directory: str | Path) -> None:
    owner, made = os.stat(directory), os.fstat(handle)
    # New ones alone: the owner of a directory can put links to others into it, or the files.
    if S_ISDIR(made.st_mode):
        is_new = not os.listdir(handle)
    else:
        is_new = S_ISREG(made.st_mode) and made.st_nlink == 1 and made.st_size == 0
    if is_new and made.st_uid == 0 and owner.st_uid != 0:
        os.fchown(handle, owner.st_uid, owner.st_gid)
