"""Mounts at and below a directory, as far as they affect watching it."""

from __future__ import annotations

import os
import re
import select

_TABLE = "/proc/self/mountinfo"

_SHARED = frozenset(
    {
        *("9p", "afs", "ceph", "cifs", "drvfs", "fuse", "gfs2", "glusterfs", "lustre", "ncpfs"),
        *("nfs", "nfs4", "ocfs2", "prl_fs", "proc", "smb3", "smbfs", "sysfs", "vboxsf"),
        *("virtiofs", "vmhgfs"),
    }
)
"""Filesystems that can change without this kernel seeing it."""

_IN_MEMORY = frozenset({"hugetlbfs", "ramfs", "tmpfs"})
"""Filesystems on which a write through a mapping may leave a file's times unchanged."""

_OCTAL = re.compile(rb"\\(\d{3})")

Mount = tuple[bytes, bytes, str]
"""Mount ID, mount point, and filesystem type."""


class Mounts:
    """The mounts that make up a directory, and whether they are still the same."""

    _handle = -1  # until it is open

    def __init__(self, root: bytes) -> None:
        """Read the mounts of a directory; raises ``OSError`` if the system does not list them."""
        self._root = os.path.realpath(root)
        self._handle = os.open(_TABLE, os.O_RDONLY | os.O_CLOEXEC)
        self._poll = select.poll()
        # The kernel signals POLLERR and POLLPRI when the table changes, so unchanged mounts cost
        # one poll.
        self._poll.register(self._handle, select.POLLERR | select.POLLPRI)
        self._mounts = self._read()

    def changed(self) -> bool:
        """Whether anything was mounted or unmounted in the directory since it was first read."""
        return bool(self._poll.poll(0)) and self._read() != self._mounts

    def shared(self) -> str | None:
        """Return the type of a filesystem here that other machines may change, or None."""
        for _, _, kind in self._mounts:
            if kind.partition(".")[0] in _SHARED:
                return kind
        return None

    def in_memory(self) -> list[bytes]:
        """Return, relative to the root, where files' times do not show writes through mappings."""
        top = self._root.rstrip(b"/") + b"/"
        points = [point for _, point, kind in self._mounts if kind in _IN_MEMORY]
        return [point[len(top) :] if point.startswith(top) else b"" for point in points]

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the table. Idempotent."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _read(self) -> list[Mount]:
        """Return the mount that holds the directory, and those below it."""
        holder: list[Mount] = []
        below: list[Mount] = []
        for mount in self._table():
            point = mount[1].rstrip(b"/")
            if point.startswith(self._root.rstrip(b"/") + b"/"):
                below.append(mount)
            # The last of the longest prefixes: a later mount at the same point hides the earlier
            # one.
            elif (self._root + b"/").startswith(point + b"/") and (
                not holder or len(point) >= len(holder[0][1].rstrip(b"/"))
            ):
                holder = [mount]
        return holder + below

    def _table(self) -> list[Mount]:
        # The same handle: a new one would miss the changes before it was registered.
        os.lseek(self._handle, 0, os.SEEK_SET)
        data = b""
        while more := os.read(self._handle, 1 << 16):
            data += more
        return [_mount(line) for line in data.splitlines()]


def _mount(line: bytes) -> Mount:
    fields, _, rest = line.partition(b" - ")
    number, _, _, _, point, *_ = fields.split(b" ")
    place = _OCTAL.sub(lambda found: bytes([int(found[1], 8)]), point)
    return number, place, rest.split(b" ", 1)[0].decode()
