"""Taking the place of a file that somebody may be changing at this very moment.

Whatever gives way is first taken out, in the same instant in which its successor takes its place,
and looked at. Only what looks as it did when it was captured, and has the bytes that the store
holds, goes; anything else goes back. The bytes are compared because a write through memory may show
in no stat.

Two names of our own stand beside a leaf meanwhile. The draft is what is being written, nobody
else's. The swap is what changes places: before, it is the finished successor; after, it is what was
taken out. A process that is killed leaves them, and :func:`sweep` tells them apart.
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

DRAFT = b".mulligan-draft-"
"""How the names begin of what a restore has beside a leaf while it takes its place."""

CHANGED = "it was changed"
"""How the reason begins why a restore left alone what another program works on."""


_OURS = re.compile(re.escape(DRAFT) + rb"([0-9a-f]{16})-[0-9a-f]{20}")

Unlink = Callable[[int, bytes], None]
"""Deletes a name in an open directory."""

Held = Callable[[bytes], bool]
"""Whether the store holds the bytes of what has a name in the directory at hand."""


class TemporaryNames(NamedTuple):
    """The names that one restore uses beside a leaf: always the same, and no other restore's."""

    draft: bytes
    swap: bytes


def temporary_names(name: bytes, token: str) -> TemporaryNames:
    """Return the names beside a leaf; the token is that of the restore."""
    draft = DRAFT + token.encode() + b"-" + blake3(name).hexdigest(length=10).encode()
    return TemporaryNames(draft, draft + b".swap")


def token_of(name: bytes) -> str | None:
    """Return the token of the restore that a draft is of; None if a name is not that of a draft.

    A swap is no draft: it may be the only copy of somebody's work.
    """
    found = _OURS.fullmatch(name)
    return found[1].decode() if found else None


class Swap:
    """Puts leaves in place of others within a directory, and takes leaves away."""

    def __init__(self, failpoint: FailpointHook, unlink: Unlink) -> None:
        """``unlink`` deletes what was taken out, or soon will; nobody needs it any more."""
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
        """Give a finished draft its name, in place of what looked like ``before``, if anything.

        Raises ``FileExistsError`` when something else is there, or what the store does not hold;
        that stays.
        """
        if before is None:
            _rename_new(own.draft, name, parent)
            return
        os.rename(own.draft, own.swap, src_dir_fd=parent, dst_dir_fd=parent)
        try:
            exchanged = syscalls.rename(own.swap, name, parent, syscalls.EXCHANGE)
        except FileNotFoundError:
            _rename_new(own.swap, name, parent)  # it went away by itself
            return
        if exchanged:
            try:
                self._failpoint(Failpoint.RESTORE_SWAPPED)
            finally:
                self._drop(parent, name, own.swap, before, held)
        else:
            if not (_is_same(before, _status(name, parent)) and held(name)):
                raise _changed()
            os.replace(own.swap, name, src_dir_fd=parent, dst_dir_fd=parent)

    def take_away(
        self, parent: int, name: bytes, own: TemporaryNames, before: os.stat_result, held: Held
    ) -> None:
        """Delete a leaf that looked like ``before`` and that the store holds.

        Raises ``FileExistsError`` if it does not, and the leaf stays.
        """
        _rename_new(name, own.swap, parent)
        try:
            self._failpoint(Failpoint.RESTORE_SWAPPED)
        finally:
            if _is_same(before, _status(own.swap, parent)) and held(own.swap):
                self._unlink(parent, own.swap)
            else:
                _rename_new(own.swap, name, parent)
                raise _changed()

    def _drop(
        self, parent: int, name: bytes, swap: bytes, before: os.stat_result, held: Held
    ) -> None:
        """Delete what was taken out if it is what was seen and stored; else put it back."""
        if _is_same(before, _status(swap, parent)) and held(swap):
            self._unlink(parent, swap)
            return
        ours = _status(name, parent)
        syscalls.rename(swap, name, parent, syscalls.EXCHANGE)
        if _is_same(ours, _status(swap, parent)):
            os.unlink(swap, dir_fd=parent)
            raise _changed()
        text = f"{CHANGED} twice while the restore was under way; see {os.fsdecode(swap)}"
        raise FileExistsError(errno.EEXIST, text)


def discard(parent: int, own: TemporaryNames, made: int) -> None:
    """Remove what was written and did not get its name; ``made`` is its inode's number.

    What was taken out of its place stays, for :func:`sweep` to look at.
    """
    for name in own:
        with suppress(OSError):
            if _status(name, parent).st_ino == made:
                os.unlink(name, dir_fd=parent)


def sweep(parent: int, own: TemporaryNames, objects: Objects, *known: object) -> None:
    """Remove what a killed restore left beside a leaf.

    A draft is always its own. What was to change places goes if it is one of the known entries,
    with the bytes that the store holds; else it is somebody's work, and stays.
    """
    with suppress(OSError):
        os.unlink(own.draft, dir_fd=parent)
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
    os.rename(old, new, src_dir_fd=parent, dst_dir_fd=parent)


def _status(name: bytes, parent: int) -> os.stat_result:
    return os.stat(name, dir_fd=parent, follow_symlinks=False)


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether nothing but its name was changed; a rename itself moves the ctime."""
    return (one.st_ino, one.st_size, one.st_mtime_ns, one.st_mode) == (
        other.st_ino,
        other.st_size,
        other.st_mtime_ns,
        other.st_mode,
    )


def _is_entry(name: bytes, parent: int, entry: object, objects: Objects) -> bool:
    """Whether a leaf has the bytes, the time and the mode of an entry, or a link its target."""
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
