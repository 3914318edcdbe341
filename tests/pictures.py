"""A picture of a directory tree, taken with plain system calls and none of the code under test."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import NamedTuple

KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


class Seen(NamedTuple):
    """Everything that can be seen of one path."""

    kind: str
    mode: int | None
    mtime: int
    size: int
    content: bytes
    xattrs: tuple[tuple[str, bytes], ...]


Picture = dict[bytes, Seen]


def picture(root: Path | str, *, skip: tuple[bytes, ...] = (b".mulligan",)) -> Picture:
    """Return all paths below a directory and itself, as they are now; stores are passed over."""
    found: Picture = {}
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _look(handle, b"", found, skip)
    finally:
        os.close(handle)
    return found


def without_times(seen: Picture) -> dict[bytes, tuple[object, ...]]:
    """Return a picture in which only content, kinds and modes count."""
    return {path: (s.kind, s.mode, s.size, s.content, s.xattrs) for path, s in seen.items()}


def _look(handle: int, path: bytes, found: Picture, skip: tuple[bytes, ...]) -> None:
    status = os.fstat(handle)
    found[path] = Seen(
        "directory", stat.S_IMODE(status.st_mode), status.st_mtime_ns, 0, b"", _xattrs(handle)
    )
    for name in sorted(map(os.fsencode, os.listdir(handle))):
        if name in skip:
            continue
        child = path + b"/" + name if path else name
        status = os.stat(name, dir_fd=handle, follow_symlinks=False)
        kind = KINDS[stat.S_IFMT(status.st_mode)]
        if kind == "directory":
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
            try:
                _look(inner, child, found, skip)
            finally:
                os.close(inner)
        else:
            found[child] = _leaf(handle, name, kind, status)


def _leaf(parent: int, name: bytes, kind: str, status: os.stat_result) -> Seen:
    mode, mtime = stat.S_IMODE(status.st_mode), status.st_mtime_ns
    if kind == "symlink":
        return Seen(kind, None, mtime, 0, os.readlink(name, dir_fd=parent), ())
    if kind != "file":
        return Seen(kind, mode, mtime, 0, b"", ())
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        hasher = hashlib.sha256()
        while data := os.read(handle, 1 << 20):
            hasher.update(data)
        return Seen(kind, mode, mtime, status.st_size, hasher.digest(), _xattrs(handle))
    finally:
        os.close(handle)


def _xattrs(handle: int) -> tuple[tuple[str, bytes], ...]:
    try:
        names = [name for name in os.listxattr(handle) if name.startswith("user.")]
        return tuple((name, os.getxattr(handle, name)) for name in sorted(names))
    except (OSError, AttributeError):
        return ()
