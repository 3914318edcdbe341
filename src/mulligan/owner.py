"""Files of a store belong to the user whose store it is, also those that root makes.

Root writes stores of others: in a container, or with sudo. What it left as its own, such as a pack
or the compact copy of a journal, would lock the owner out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR, S_ISREG

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def open_as_owner(file: str | Path, flags: int) -> int:
    """Open a file of a store; one that root makes gets the owner of its directory.

    A link is refused.
    """
    # The owner of the directory could lead root to any other file by a link.
    flags |= os.O_NOFOLLOW
    if os.geteuid() != 0:
        return os.open(file, flags, 0o600)
    with _parent(file) as (parent, name):
        handle = os.open(name, flags, 0o600, dir_fd=parent)
        with suppress(OSError):  # refused on some network file systems
            _give(handle, parent)
        return handle


def make_directory(directory: str | Path) -> None:
    """Make a directory of a store if it is missing; one that root makes gets the owner of the next.

    A directory of root would lock the owner out from what comes into it.
    """
    try:
        if os.geteuid() == 0:
            _make_as_owner(directory)
        else:
            os.mkdir(directory, 0o700)
    except FileExistsError:
        if not os.path.isdir(directory):
            raise


def _make_as_owner(directory: str | Path) -> None:
    with _parent(directory) as (parent, name):
        os.mkdir(name, 0o700, dir_fd=parent)
        with suppress(OSError):
            handle = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            try:
                _give(handle, parent)
            finally:
                os.close(handle)


@contextmanager
def _parent(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield a handle on the directory of a path, and the name there.

    By its name, the directory could be another one by the time that its owner is asked for.
    """
    directory, name = os.path.split(path)
    try:
        handle = os.open(directory or os.curdir, _DIRECTORY)
        try:
            yield handle, name
        finally:
            os.close(handle)
    except OSError as error:
        error.filename = os.fspath(path)
        raise


def _give(handle: int, parent: int) -> None:
    owner, made = os.fstat(parent), os.fstat(handle)
    # New ones alone: the owner of a directory can put links to others into it, or the files.
    if S_ISDIR(made.st_mode):
        is_new = not os.listdir(handle)
    else:
        is_new = S_ISREG(made.st_mode) and made.st_nlink == 1 and made.st_size == 0
    if is_new and made.st_uid == 0 and owner.st_uid != 0:
        os.fchown(handle, owner.st_uid, owner.st_gid)
