"""Open workspace files without releasing the locks that this process holds on them.

When a process closes any descriptor of a file, the kernel releases all of its ``fcntl`` locks on
that file, whichever part of the process took them. A program that uses this library may have a
database open in its workspace, and SQLite locks this way: a checkpoint in the middle of a
transaction would let a second writer in. So if this process also has a file open elsewhere, its
descriptor is kept and reused until it is the only one left.
"""

from __future__ import annotations

import os
import stat
import threading
from contextlib import suppress

_DESCRIPTORS = "/proc/self/fd"
_BLOCK = 512
"""Databases, and the files used to lock them, consist of whole blocks of this size."""

_File = tuple[int, int]

_kept: dict[int, _File] = {}
"""Kept descriptors, each with the device and inode of its file."""

# Captures of several workspaces may run in threads of one process.
_lock = threading.Lock()


def _reset_after_fork() -> None:
    """Share nothing with the parent after a fork.

    A thread that does not exist here may have held the lock. Parent and child would share the
    position of an inherited descriptor. Closing one is safe: this process holds no locks yet.
    """
    global _lock
    _lock = threading.Lock()
    for handle, file in _kept.items():
        if _is_still(handle, file):
            os.close(handle)
    _kept.clear()


os.register_at_fork(after_in_child=_reset_after_fork)


def open_file(name: bytes, flags: int, directory: int | None = None) -> int:
    """Open a file for reading, positioned at the start; close it with :func:`close_file`."""
    if _kept:
        with suppress(OSError), _lock:
            file = _file(os.stat(name, dir_fd=directory, follow_symlinks=False))
            for handle in [kept for kept, known in _kept.items() if known == file]:
                # Not listed as kept while in use, so that no other thread closes it.
                del _kept[handle]
                if _is_still(handle, file):
                    os.lseek(handle, 0, os.SEEK_SET)
                    return handle
    return os.open(name, flags, dir_fd=directory)


def close_file(handle: int) -> None:
    """Close a file, or keep it while this process has it open elsewhere."""
    with suppress(OSError):
        status = os.fstat(handle)
        # Skip the check for other files, of which there may be many: a database always has whole
        # blocks, and an empty one has nothing to lose.
        if stat.S_ISREG(status.st_mode) and status.st_size and status.st_size % _BLOCK == 0:
            with _lock:
                _kept[handle] = _file(status)
            close_kept({_file(status)})
            return
    os.close(handle)


def close_kept(files: set[_File] | None = None) -> None:
    """Close kept descriptors, of all files or of some, that are no longer open elsewhere."""
    if not _kept:
        return
    with _lock:
        # Decide and close under one lock: a descriptor number that another thread closes may be
        # reused at once.
        elsewhere = _open_files(_kept)
        for handle, file in list(_kept.items()):
            if file not in elsewhere and (files is None or file in files):
                del _kept[handle]
                if _is_still(handle, file):
                    os.close(handle)


def _open_files(but: dict[int, _File]) -> set[_File]:
    """Return the files that this process has open through other descriptors."""
    found = set()
    with suppress(FileNotFoundError):  # /proc is not available everywhere
        for name in os.listdir(_DESCRIPTORS):
            if int(name) not in but:
                with suppress(OSError):
                    found.add(_file(os.fstat(int(name))))
    return found


def _is_still(handle: int, file: _File) -> bool:
    """Whether a descriptor is still ours: a daemon closes all of its own and reuses the numbers."""
    try:
        return _file(os.fstat(handle)) == file
    except OSError:
        return False


def _file(status: os.stat_result) -> _File:
    return status.st_dev, status.st_ino
