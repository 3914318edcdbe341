"""The program of a scan worker: report which of the given directories are unchanged.

It is run by file name in an interpreter without packages, and imports only built-in modules, so
that it starts within a few milliseconds. Its argument is the number of an open file. On standard
input it reads, repeatedly, how many more bytes of that file are ready, and finally 0. On standard
output it answers once, after checking everything.
"""

import struct
import sys
from posix import _exit, chdir, lstat, pread, read, write

READY = struct.Struct(">Q")
"""Number of further bytes that are ready."""

HEAD = struct.Struct(">qI")
"""The ctime from which nothing is trusted, and the length of the common path prefix."""

DIRECTORY = struct.Struct(">QqqIII")
"""Inode, ctime, mtime; the lengths of its path, of its leaves' names and of their stats."""

LINKED = struct.Struct(">II")
"""The number of a directory, and of a leaf in it that has other names too."""

SAME, DIFFERENT = b"\1", b"\0"

_STAT = struct.Struct(">qqQQ")
"""A leaf's stat, packed as in an index."""


class Answer:
    """One byte per directory, ``SAME`` or ``DIFFERENT``, followed by the linked leaves."""

    def __init__(self, fresh: int, prefix: bytes) -> None:
        self._fresh = fresh
        self._prefix = prefix
        self._verdicts: list[bytes] = []
        self._linked: list[bytes] = []

    def look(self, request: bytes, at: int = 0) -> None:
        """Check the directories that are described from an offset on."""
        while at < len(request):
            *own, path_length, names_length, stats_length = DIRECTORY.unpack_from(request, at)
            names_at = at + DIRECTORY.size + path_length
            stats_at = names_at + names_length
            path = self._prefix + request[at + DIRECTORY.size : names_at]
            at = stats_at + stats_length
            names = request[names_at:stats_at].split(b"\0") if stats_length else []
            found = _linked(path, own, names, request[stats_at:at], self._fresh)
            if found:
                number = len(self._verdicts)
                self._linked += [LINKED.pack(number, leaf) for leaf in found]
            self._verdicts.append(DIFFERENT if found is None else SAME)

    def encoded(self) -> bytes:
        """Return the encoded answer."""
        return b"".join(self._verdicts + self._linked)


def _linked(
    path: bytes, own: list[int], names: list[bytes], stats: bytes, fresh: int
) -> list[int] | None:
    """Return which leaves have other names too, or None if anything changed.

    The leaves are checked from inside the directory, which saves resolving the path for each. If a
    symlink led here, the names in another directory changed, and the check of that one finds it.
    """
    try:
        # Entered first, then checked through ".": a directory replaced in between fails the
        # comparison.
        chdir(path)
        now = lstat(b".")
        if [now.st_ino, now.st_ctime_ns, now.st_mtime_ns] != own:
            return None
        return _linked_leaves(names, stats, fresh)
    except OSError:
        return None


def _linked_leaves(names: list[bytes], stats: bytes, fresh: int) -> list[int] | None:
    linked = []
    for name, (ctime, mtime, size, inode) in zip(names, _STAT.iter_unpack(stats), strict=True):
        now = lstat(name)
        if (
            now.st_ctime_ns != ctime
            or now.st_mtime_ns != mtime
            or now.st_size != size
            or now.st_ino != inode
            # A file changed within the resolution of timestamps before its capture may have changed
            # again unseen.
            or ctime >= fresh
        ):
            return None
        if now.st_nlink > 1:
            linked.append(name)
    numbers = {name: number for number, name in enumerate(names)} if linked else {}
    return [numbers[name] for name in linked]


def main() -> None:
    """Answer the requests in the file given by its number."""
    file = int(sys.argv[1])
    (at,) = READY.unpack(read(0, READY.size))
    first = pread(file, at, 0)
    fresh, length = HEAD.unpack_from(first)
    answer = Answer(fresh, first[HEAD.size : HEAD.size + length])
    answer.look(first, HEAD.size + length)
    while more := READY.unpack(read(0, READY.size))[0]:
        answer.look(pread(file, more, at))
        at += more
    data = answer.encoded()
    # A pipe takes only part of a large answer at once.
    while data:
        data = data[write(1, data) :]
    _exit(0)  # skip interpreter shutdown, which would delay the caller


if __name__ == "__main__":
    main()
