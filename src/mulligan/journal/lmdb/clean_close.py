"""The mark of a clean close: size, times and digest of the journal's file at that moment.

A file that matches its mark is as LMDB left it, and is opened at once. Any other file (its writer
was killed, the power failed, it was copied, restored or modified) is first checked page by page.
The mark is a hint: it is not synced, and without it the file is checked.

A disk that loses bits changes neither the size nor the time of a file. So the mark also has a
digest of the content, unless the file is so large that computing it would slow every command.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from blake3 import blake3

from mulligan.owner import open_as_owner

NAME = "clean"
DATA = "data.mdb"

MAX_DIGESTED_BYTES = 256 << 20
"""The size in bytes of the largest file whose content is compared with its digest: 40 ms."""

# Longer than any mark.
_SIZE = 200
_CHECK = 12
_DIGEST = 16
# Read in pieces, so that memory use does not depend on the size of the journal.
_PIECE = 1 << 18
_NO_DIGEST = "-"


class Mark(msgspec.Struct, frozen=True):
    """The record of the last clean close.

    ``highest`` is the highest commit that any mark of this journal ever named: a journal that ends
    before it is an older copy. ``digest`` is that of the file's content, if it is not too large.
    """

    size: int
    mtime: int
    ctime: int
    commit: int
    highest: int
    digest: str


class Look(msgspec.Struct, frozen=True):
    """The fields of a file that are compared: every write changes at least one of them.

    Copy programs may reset ``mtime`` to the old value; no program can set ``ctime``.
    """

    size: int
    mtime: int
    ctime: int


def look(file: Path | str) -> Look:
    """Return the compared fields of a file."""
    status = os.stat(file)
    return Look(status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def read(directory: Path) -> Mark | None:
    """Return the mark of a journal; None if it is missing or unreadable."""
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
    size, mtime, ctime, commit, highest, digest = line.decode().split()
    return Mark(int(size), int(mtime), int(ctime), int(commit), int(highest), digest)


def write(directory: Path, found: Look, commit: int, known: str | None = None) -> None:
    """Record that the journal was closed cleanly at this commit; raises ``OSError``.

    ``known`` is the digest of the file's content, if the caller has it already.
    """
    before = read(directory)
    # Kept across marks: an older copy of the journal stays noticeable after it was closed.
    highest = max(commit, before.highest if before else 0)
    content = (_digest_now(directory, found) if known is None else known).encode()
    line = b"%d %d %d %d %d %b" % (found.size, found.mtime, found.ctime, commit, highest, content)
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = open_as_owner(directory / NAME, flags)
    try:
        # One write over the old mark. A torn write fails the checksum, and the mark is ignored.
        data = line + b" " + _checksum(line) + b"\n"
        # Not synced: without a mark, or with an old one, the next open only takes longer.
        os.pwrite(fd, data, 0)
        # After the write: an older, longer mark may leave bytes behind this one.
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)


def is_clean(mark: Mark | None, found: Look, commit: int, fd: int) -> bool:
    """Whether a journal, open as ``fd``, still matches its mark."""
    if mark is None or commit != mark.commit or found != Look(mark.size, mark.mtime, mark.ctime):
        return False
    return mark.digest in (_NO_DIGEST, digest(fd, found.size))


def _digest_now(directory: Path, found: Look) -> str:
    """Return the digest of a journal's file; raises ``OSError``.

    If others write to it in the meantime, the digest does not match, and the file is checked.
    """
    fd = os.open(directory / DATA, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return digest(fd, found.size)
    finally:
        os.close(fd)


def digest(fd: int, size: int) -> str:
    """Return the digest of a journal's file as a mark has it; one that is too large has none."""
    if size > MAX_DIGESTED_BYTES:
        return _NO_DIGEST
    hasher, at = blake3(), 0
    while data := os.pread(fd, _PIECE, at):
        hasher.update(data)
        at += len(data)
    return hasher.hexdigest(length=_DIGEST)


def _checksum(line: bytes) -> bytes:
    return blake3(line).hexdigest(length=_CHECK).encode()
