"""What LMDB's errors mean: a full disk, missing permission, a disk error, or damage."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import lmdb

from mulligan.errors import (
    DamagedJournal,
    DiskFull,
    MulliganError,
    ReadOnlyStore,
    StoreOpenedTwice,
    StoreUnwritable,
)

READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NEARLY_NOTHING = 1024
"""Free blocks below which a failed write means that the disk is full."""

_FAULT_HINT = (
    "Everything acknowledged before is safe. Try again; if it fails again, check the disk."
)
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Exhausted limits of the process or the system; the journal itself is fine."""

_SCARCE_HINT = (
    "Everything acknowledged before is safe. End other processes that use the store, or raise the "
    "limit (`ulimit -n`, `ulimit -v`), then try again."
)
_GROWN_HINT = "Everything acknowledged before is safe. Try again: the map is larger then."


@contextmanager
def translated(what: str = "the journal") -> Iterator[None]:
    """Turn LMDB's errors into ours."""
    try:
        yield
    except MulliganError:
        raise
    except (lmdb.Error, OSError, struct.error) as error:
        raise translation(error, what) from error


def translation(error: Exception, what: str) -> Exception:
    """Return our error for an error of LMDB or of the system."""
    number = error_number(error)
    if isinstance(error, lmdb.MapFullError):
        return StoreUnwritable(f"The map was too small to write {what}.", hint=_GROWN_HINT)
    if number in _FULL:
        return DiskFull(f"There is no space left to write {what}.")
    if isinstance(error, lmdb.ReadonlyError) or number in READ_ONLY:
        return ReadOnlyStore(f"Permission to write {what} was denied.")
    if number == errno.EIO or isinstance(error, lmdb.PanicError):
        said = os.strerror(errno.EIO)
        return StoreUnwritable(
            f"The disk failed to read or write {what}: {said}.", hint=_FAULT_HINT
        )
    if number in _SCARCE or isinstance(error, lmdb.ReadersFullError):
        said = str(error) if number is None else os.strerror(number)
        return StoreUnwritable(f"Could not use {what}: {said}.", hint=_SCARCE_HINT)
    if "already open in this process" in str(error):
        return StoreOpenedTwice("The journal is already open in this process.")
    if isinstance(error, lmdb.Error):
        return DamagedJournal(f"Could not read or write {what}: {error}.")
    return error


def commit_failure(error: lmdb.Error, directory: str) -> Exception:
    """Return our error for a commit that failed."""
    # LMDB reports a short write, as on a disk that fills up, as an I/O error.
    if error_number(error) == errno.EIO and os.statvfs(directory).f_bavail < _NEARLY_NOTHING:
        return DiskFull("There is no space left to write the journal.")
    return translation(error, "the journal")


def error_number(error: Exception) -> int | None:
    """Return the errno behind an error; LMDB only keeps its text."""
    if isinstance(error, OSError):
        return error.errno
    text = str(error)
    # Comparing texts is safe: both come from the C library in the same locale.
    known = (*_FULL, *READ_ONLY, *_SCARCE, errno.EIO)
    return next((n for n in known if os.strerror(n) in text), None)
