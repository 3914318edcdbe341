"""The mark of a clean close: what the journal's file looked like when its last writer left it.

A file that still looks so is as LMDB left it, and is opened at once. Any other (its writer was
killed, the power failed, it was copied, put back or tampered with) is checked page by page first.
The mark is a hint: it is not synced, and without it the file is checked.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

NAME = "clean"
_SIZE = 200
_CHECK = 8


class Mark(NamedTuple):
    """What was written down at the last clean close.

    ``highest`` is the highest commit that any mark of this journal ever named: a journal that ends
    before it is an older copy.
    """

    size: int
    mtime: int
    ctime: int
    commit: int
    highest: int


class Look(NamedTuple):
    """What is compared of a file: anything that writes to it changes one of them.

    Programs that copy over a file set its ``mtime`` to what it was; nobody can set ``ctime``.
    """

    size: int
    mtime: int
    ctime: int


def look(file: Path) -> Look:
    """Return what a file looks like."""
    status = os.stat(file)
    return Look(status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def read(directory: Path) -> Mark | None:
    """Return the mark of a journal; None without one that can be read."""
    try:
        fd = os.open(directory / NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        data = os.read(fd, _SIZE)
    except OSError:
        return None
    finally:
        os.close(fd)
    line, _, check = data.rstrip(b"\n").rpartition(b" ")
    if check != _checksum(line):
        return None
    numbers = list(map(int, line.split()))
    return Mark(*numbers) if len(numbers) == len(Mark._fields) else None


def write(directory: Path, found: Look, commit: int) -> None:
    """Write down that the journal was left clean at this commit; raises ``OSError``."""
    before = read(directory)
    highest = max(commit, before.highest if before else 0)
    line = b"%d %d %d %d %d" % (*found, commit, highest)
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(directory / NAME, flags, 0o600)
    try:
        # In one piece and over the old one. Torn, its checksum is wrong, and it counts for nothing.
        data = line + b" " + _checksum(line) + b"\n"
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)


def is_clean(mark: Mark | None, found: Look, commit: int) -> bool:
    """Whether a journal still is as its mark says."""
    return mark is not None and mark[:-1] == (*found, commit)


def _checksum(line: bytes) -> bytes:
    return blake3(line).hexdigest(length=_CHECK).encode()
