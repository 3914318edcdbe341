"""The pointer: a small file ``.mulligan`` in a directory that names the store of its files.

It holds the path of the store, its id, the session if the directory belongs to a fork, and the
identity of the directory it was written into. Earlier versions wrote ``.mulligan/FORK`` into the
directories of forks; those are still read.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

import msgspec

from mulligan.errors import UnknownFormat
from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.layout import NAME, STAGING, read_format, sync_directory, write_all
from mulligan.locate.identity import Identity, identity_of
from mulligan.locate.small_json import decoded, encoded

VERSION = 1
FORK = "FORK"
"""Name of the pointer in a ``.mulligan`` directory of an earlier version."""

MAX_SIZE = 1 << 16


class _Content(msgspec.Struct):
    """The content of a pointer file; every version has the fields without a default."""

    store: str
    version: int = VERSION
    id: str | None = None
    session: str | None = None
    device: int | None = None
    inode: int | None = None
    born: int = 0


class Pointer(msgspec.Struct, frozen=True):
    """Names the store, and the session in it, that a directory's files belong to.

    ``session`` is None in the directory of the store's project, and a name in that of a fork.
    ``made_for`` is the directory that it was written into; None if an early version wrote it.
    ``id`` is that of the store; None if an earlier version wrote the pointer.
    """

    directory: Path
    store: str
    session: str | None
    made_for: Identity | None = None
    id: str | None = None

    @property
    def is_in_place(self) -> bool:
        """Whether it is in the directory that it was written into, wherever that is now."""
        return self.made_for is not None and self.made_for.matches(identity_of(self.directory))

    def names(self, store: Path) -> bool:
        """Whether it points to a store: by id, or by path if it has no id."""
        if self.id is not None:
            return self.id == read_format(store).id
        try:
            return os.path.samefile(self.store, store)
        except OSError:
            return False


def read_pointer(directory: Path) -> Pointer | None:
    """Return the pointer of a directory; None if there is none, or it is garbled."""
    data = _read(directory / NAME)
    if data is None:
        data = _read(directory / NAME / FORK)
    if not data:
        return None
    try:
        said = decoded(data, _Content)
        is_path = b"\0" not in os.fsencode(said.store)
    # Anything may be in a project's directory; what is no pointer is treated as not there.
    except (ValueError, RecursionError):
        return None
    if not is_path:
        return None
    if said.version != VERSION:
        raise UnknownFormat(f"The pointer {directory / NAME} has version {said.version}.")
    made_for = None
    if said.device is not None and said.inode is not None:
        made_for = Identity(said.device, said.inode, said.born)
    return Pointer(directory.resolve(), said.store, said.session, made_for, said.id)


def write_pointer(
    directory: Path,
    store: str,
    session: str | None = None,
    failpoint: FailpointHook = ignore,
    *,
    of: Path | None = None,
) -> None:
    """Write the pointer of a directory; durable and atomic, even if the process is killed.

    ``of`` is the directory that it will be moved to. In a git work tree, the pointer is excluded
    from git. Raises ``IsADirectoryError`` if ``.mulligan`` is a directory.
    """
    from mulligan.locate.git import exclude  # most commands only read pointers

    exclude(directory)
    made_for = identity_of(of or directory)
    content = _Content(
        store,
        id=read_format(Path(store)).id,
        session=session,
        device=made_for.device,
        inode=made_for.inode,
        born=made_for.born,
    )
    data = encoded(msgspec.structs.asdict(content)) + b"\n"
    temporary, handle = _locked_draft(directory)
    try:
        write_all(handle, data)
        # Sync before the rename: otherwise a power cut could leave an empty pointer.
        os.fsync(handle)
        failpoint(Failpoint.POINTER_WRITTEN)
        # After the sync above: the name must not lead to bytes that a power cut can lose.
        temporary.replace(directory / NAME)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)
    # The new name must be durable too, or a power cut brings the old pointer back.
    sync_directory(directory)
    failpoint(Failpoint.POINTER_IN_PLACE)


def _locked_draft(directory: Path) -> tuple[Path, int]:
    """Create an empty file under a temporary name; return its path and its locked handle."""
    # In a loop: another process may delete the file before it is locked.
    while True:
        draft = directory / f"{STAGING}-{os.urandom(8).hex()}"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        # While it is locked, no other process deletes it as abandoned; see ``find.sweep``.
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return draft, handle
        # Swept between its creation and our lock.
        os.close(handle)


def _read(file: Path) -> bytes | None:
    """Return the content of a small regular file; symlinks are not followed, FIFOs do not block."""
    try:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(file, flags)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        return os.read(handle, MAX_SIZE)
    except OSError:
        return None
    finally:
        os.close(handle)
