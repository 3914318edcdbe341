"""Files of the workspace, opened without releasing the locks that this process has on them.

When a process closes any descriptor of a file, the kernel releases all ``fcntl`` locks that the
process holds on it, whichever part of the process took them. A program that uses this library may
have a database in its workspace open, and SQLite locks in this way: a checkpoint in the middle of a
transaction would let a second writer in. So the descriptor of a file that this process has open
elsewhere, too, is kept and used again, until it is the only one.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

_DESCRIPTORS = "/proc/self/fd"
_BLOCK = 512
"""Databases, and the files by which they are locked, are made of whole blocks of this size."""

_File = tuple[int, int]

_kept: dict[int, _File] = {}
"""The descriptors that are kept, each with the device and the inode of its file."""

_lock = threading.Lock()


def _begin_anew() -> None:
    """Share nothing with the process that this one was forked from.

    A thread that is not here may have held the lock. Of a descriptor from there both processes
    would move the same position; this one has no locks yet that closing it could release.
    """
    global _lock
    _lock = threading.Lock()
    for handle, file in _kept.items():
        if _is_still(handle, file):
            os.close(handle)
    _kept.clear()


os.register_at_fork(after_in_child=_begin_anew)


def open_file(name: bytes, flags: int, directory: int | None = None) -> int:
    """Open a file for reading, at its start; to be closed by :func:`close_file`."""
    if _kept:
        with suppress(OSError), _lock:
            file = _file(os.stat(name, dir_fd=directory, follow_symlinks=False))
            for handle in [kept for kept, known in _kept.items() if known == file]:
                # While it is in use it is not kept, so that no other thread closes it.
                del _kept[handle]
                if _is_still(handle, file):
                    os.lseek(handle, 0, os.SEEK_SET)
                    return handle
    return os.open(name, flags, dir_fd=directory)


def close_file(handle: int) -> None:
    """Close a file, or keep it as long as this process has it open elsewhere."""
    with suppress(OSError):
        status = os.fstat(handle)
        # Others are not worth the look, for there may be many: no database is like that, and one
        # that is empty has nothing to lose.
        if status.st_size and status.st_size % _BLOCK == 0:
            with _lock:
                _kept[handle] = _file(status)
            close_kept({_file(status)})
            return
    os.close(handle)


def close_kept(files: set[_File] | None = None) -> None:
    """Close what was kept, or what was kept of some files, and is not open elsewhere any more."""
    if not _kept:
        return
    with _lock:
        elsewhere = _open_files(_kept)
        for handle, file in list(_kept.items()):
            if file not in elsewhere and (files is None or file in files):
                del _kept[handle]
                if _is_still(handle, file):
                    os.close(handle)


def _open_files(but: dict[int, _File]) -> set[_File]:
    """Return the files that this process has open by other descriptors."""
    found = set()
    with suppress(FileNotFoundError):  # not every system has it
        for name in os.listdir(_DESCRIPTORS):
            if int(name) not in but:
                with suppress(OSError):
                    found.add(_file(os.fstat(int(name))))
    return found


def _is_still(handle: int, file: _File) -> bool:
    """Whether a descriptor is ours: a daemon closes all that it has, and gives the numbers away."""
    try:
        return _file(os.fstat(handle)) == file
    except OSError:
        return False


def _file(status: os.stat_result) -> _File:
    return status.st_dev, status.st_ino
