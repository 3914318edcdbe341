"""The program of a lookout: says which of the directories it is told of are as they were.

It is run by its file name in an interpreter that finds no packages, and imports only what is built
in, so that it is at work after a few milliseconds.
"""

from __future__ import annotations

import struct
from posix import lstat, write

HEAD = struct.Struct(">qI")
"""From which ctime on nothing is trusted; the length of the path that all others begin with."""

DIRECTORY = struct.Struct(">QqqIII")
"""Inode, ctime, mtime; the lengths of its path, of its leaves' names and of their stats."""

LINKED = struct.Struct(">II")
"""The numbers of a directory and of a leaf in it that has other names too."""

SAME, DIFFERENT = b"\1", b"\0"

_STAT = struct.Struct(">qqQQ")
"""A leaf's stat, packed as in an index."""

_TYPE, _IS_DIRECTORY = 0o170000, 0o040000


def answer(request: bytes) -> bytes:
    """Return a byte for each directory, ``SAME`` or ``DIFFERENT``, and then what is linked."""
    at = HEAD.size + HEAD.unpack_from(request)[1]
    fresh, prefix = request[:8], request[HEAD.size : at]
    verdicts: list[bytes] = []
    linked: list[bytes] = []
    while at < len(request):
        *own, path_length, names_length, stats_length = DIRECTORY.unpack_from(request, at)
        names_at = at + DIRECTORY.size + path_length
        stats_at = names_at + names_length
        path = prefix + request[at + DIRECTORY.size : names_at]
        at = stats_at + stats_length
        names = request[names_at:stats_at].split(b"\0") if stats_length else []
        found = _linked(path, own, names, request[stats_at:at], fresh)
        if found:
            linked += [LINKED.pack(len(verdicts), number) for number in found]
        verdicts.append(DIFFERENT if found is None else SAME)
    return b"".join(verdicts + linked)


def _linked(
    path: bytes, own: list[int], names: list[bytes], stats: bytes, fresh: bytes
) -> list[int] | None:
    """Return which leaves have other names too, or None if not everything is as it was."""
    try:
        now = lstat(path)
        if [now.st_ino, now.st_ctime_ns, now.st_mtime_ns] != own:
            return None
        if now.st_mode & _TYPE != _IS_DIRECTORY:
            return None
        return _linked_leaves(path + b"/", names, stats, fresh)
    except (OSError, struct.error):
        return None


def _linked_leaves(
    start: bytes, names: list[bytes], stats: bytes, fresh: bytes
) -> list[int] | None:
    pack, size, linked = _STAT.pack, _STAT.size, []
    for number, name in enumerate(names):
        now = lstat(start + name)
        seen = stats[number * size : number * size + size]
        if seen != pack(now.st_ctime_ns, now.st_mtime_ns, now.st_size, now.st_ino):
            return None
        if seen >= fresh:
            return None
        if now.st_nlink > 1:
            linked.append(number)
    return linked


def main() -> None:
    """Read a request from standard input and write the answer to standard output."""
    with open(0, "rb", buffering=0) as stream:
        data = answer(stream.readall())
    while data:
        data = data[write(1, data) :]


if __name__ == "__main__":
    main()
