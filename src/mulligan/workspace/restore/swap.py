"""Replace a file that another program may be changing at this very moment.

The old file is first moved out, atomically with its successor taking its place, and then checked.
It is deleted only if it still looks as it did when it was captured and has the bytes that the store
holds; otherwise it is moved back. The bytes are compared because a write through a mapping may not
show in the stat.

Two temporary names exist beside a leaf meanwhile. ``new`` is the file being written, and always
ours. ``swap`` is the one exchanged: first the finished successor, then the old file. A killed
process leaves them behind, and :func:`sweep` tells them apart.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from blake3 import blake3

from mulligan.failpoints import Failpoint, FailpointHook
from mulligan.objects.protocol import Objects
from mulligan.workspace import syscalls
from mulligan.workspace.entries import File, Link
from mulligan.workspace.restore.content_check import is_held

TEMPORARY_PREFIX = b".mulligan-draft-"
"""Prefix of the temporary names that a restore uses beside a leaf."""

CHANGED = "it was changed"
"""Prefix of the reason when a restore leaves a file alone because a program changed it."""


_OURS = re.compile(re.escape(TEMPORARY_PREFIX) + rb"([0-9a-f]{16})-[0-9a-f]{20}")

Unlink = Callable[[int, bytes], None]
"""Deletes a name in an open directory."""

Held = Callable[[bytes], bool]
"""Whether the store holds the bytes of a name in the open directory."""


class TemporaryNames(NamedTuple):
    """The temporary names of one restore beside a leaf: deterministic, and unique to it."""

    new: bytes
    swap: bytes


def temporary_names(name: bytes, token: str) -> TemporaryNames:
    """Return the temporary names for a leaf; the token is that of the restore."""
    new = TEMPORARY_PREFIX + token.encode() + b"-" + blake3(name).hexdigest(length=10).encode()
    return TemporaryNames(new, new + b".swap")


def token_of(name: bytes) -> str | None:
    """Return the token in a temporary name; None if it is not a temporary name.

    A swap name does not count: the file may be the only copy of a user's work.
    """
    found = _OURS.fullmatch(name)
    return found[1].decode() if found else None


class Swap:
    """Replace leaves within a directory, and delete leaves."""

    def __init__(self, failpoint: FailpointHook, unlink: Unlink) -> None:
        """``unlink`` deletes what was moved out, now or soon; it is no longer needed."""
        self._failpoint = failpoint
        self._unlink = unlink

    def put(
        self,
        parent: int,
        name: bytes,
        own: TemporaryNames,
        before: os.stat_result | None,
        held: Held,
    ) -> None:
        """Rename a finished file into place, replacing what looked like ``before``, if anything.

        Raises ``FileExistsError`` if something else is there, or something that the store does not
        hold; that stays.
        """
        if before is None:
            _rename_new(own.new, name, parent)
            return
        # A complete file gets the swap name before the exchange. If the process dies now, the first
        # name never holds anything but our own unfinished work.
        os.rename(own.new, own.swap, src_dir_fd=parent, dst_dir_fd=parent)
        try:
            # Exchange atomically: the path always names a complete file, and a change by another
            # program up to this instant is in the file that comes out, where it is checked.
            exchanged = syscalls.rename(own.swap, name, parent, syscalls.EXCHANGE)
        except FileNotFoundError:
            _rename_new(own.swap, name, parent)  # it vanished meanwhile
            return
        if exchanged:
            try:
                self._failpoint(Failpoint.RESTORE_SWAPPED)
            finally:
                self._drop(parent, name, own.swap, before, held)
        else:
            # Without an exchange, check first and replace then: a change in between is lost.
            # This is the best such a filesystem allows.
            if not (_is_same(before, _status(name, parent)) and held(name)):
                raise _changed()
            os.replace(own.swap, name, src_dir_fd=parent, dst_dir_fd=parent)

    def remove(
        self, parent: int, name: bytes, own: TemporaryNames, before: os.stat_result, held: Held
    ) -> None:
        """Delete a leaf that looked like ``before`` and that the store holds.

        Raises ``FileExistsError`` otherwise, and the leaf stays.
        """
        # Moved out first, then checked: between a check and an unlink the file could change.
        _rename_new(name, own.swap, parent)
        try:
            self._failpoint(Failpoint.RESTORE_SWAPPED)
        finally:
            # In ``finally``: also a signal at the failpoint must not leave a user's file under a
            # temporary name.
            if _is_same(before, _status(own.swap, parent)) and held(own.swap):
                self._unlink(parent, own.swap)
            else:
                _rename_new(own.swap, name, parent)
                raise _changed()

    def _drop(
        self, parent: int, name: bytes, swap: bytes, before: os.stat_result, held: Held
    ) -> None:
        """Delete the file moved out if it is the one seen and stored; otherwise move it back."""
        if _is_same(before, _status(swap, parent)) and held(swap):
            self._unlink(parent, swap)
            return
        # Remember our file: if another program replaced it meanwhile, the second exchange brings
        # out that program's file, which must not be deleted.
        ours = _status(name, parent)
        # Atomic as well: at no instant is the path without a complete file.
        syscalls.rename(swap, name, parent, syscalls.EXCHANGE)
        if _is_same(ours, _status(swap, parent)):
            os.unlink(swap, dir_fd=parent)
            raise _changed()
        # Both files are kept: each may hold the only copy of a user's work.
        text = f"{CHANGED} twice while the restore was under way; see {os.fsdecode(swap)}"
        raise FileExistsError(errno.EEXIST, text)


def discard(parent: int, own: TemporaryNames, made: int) -> None:
    """Remove what was written and not renamed into place; ``made`` is its inode number.

    A file that was moved out stays, for :func:`sweep` to check.
    """
    for name in own:
        # By inode number: under the same name may be a file that another program put there.
        with suppress(OSError):
            if _status(name, parent).st_ino == made:
                os.unlink(name, dir_fd=parent)


def sweep(parent: int, own: TemporaryNames, objects: Objects, *known: object) -> None:
    """Remove the temporary files that a killed restore left beside a leaf.

    ``new`` is always ours. The swap is deleted if it is one of the known entries, with the bytes
    that the store holds; otherwise it is a user's work, and stays.
    """
    with suppress(OSError):
        # Never renamed into place, so no program can have relied on it.
        os.unlink(own.new, dir_fd=parent)
    with suppress(OSError):
        if any(_is_entry(own.swap, parent, entry, objects) for entry in known):
            os.unlink(own.swap, dir_fd=parent)


def _rename_new(old: bytes, new: bytes, parent: int) -> None:
    """Rename to a name that must be free."""
    try:
        if syscalls.rename(old, new, parent, syscalls.NO_REPLACE):
            return
        with suppress(FileNotFoundError):
            _status(new, parent)
            raise FileExistsError
    except FileExistsError as error:
        text = "something is there that no checkpoint holds"
        raise FileExistsError(errno.EEXIST, text) from error
    # Only on filesystems without RENAME_NOREPLACE; the check above is then the best there is.
    os.rename(old, new, src_dir_fd=parent, dst_dir_fd=parent)


def _status(name: bytes, parent: int) -> os.stat_result:
    return os.stat(name, dir_fd=parent, follow_symlinks=False)


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether nothing but the name changed; the ctime is ignored, since a rename changes it."""
    return (one.st_ino, one.st_size, one.st_mtime_ns, one.st_mode) == (
        other.st_ino,
        other.st_size,
        other.st_mtime_ns,
        other.st_mode,
    )


def _is_entry(name: bytes, parent: int, entry: object, objects: Objects) -> bool:
    """Whether a leaf has the bytes, time and mode of an entry, or a symlink its target."""
    status = _status(name, parent)
    if isinstance(entry, Link):
        if not stat.S_ISLNK(status.st_mode) or status.st_mtime_ns != entry.mtime:
            return False
        return os.readlink(name, dir_fd=parent) == entry.target
    if not isinstance(entry, File):
        return False
    if (status.st_mtime_ns, stat.S_IMODE(status.st_mode)) != (entry.mtime, entry.mode):
        return False
    return is_held(name, entry, objects, parent)


def _changed() -> FileExistsError:
    return FileExistsError(errno.EEXIST, f"{CHANGED} while the restore was under way")
