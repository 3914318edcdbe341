"""Other processes, as ``/proc`` shows them.

What may not be read belongs to another user, or has ended meanwhile; it is passed over. Without
``/proc`` there is nothing to see.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")

STOPPED = "Tt"
"""The states of a process that was stopped, by a signal or a debugger."""

WRITE = "write"
MAPPED = "mapped"
CWD = "cwd"

_PROC = os.fsencode(PROC)
_DELETED = b" (deleted)"


class OpenFile(NamedTuple):
    """A path that a process uses: open for ``write``, ``mapped`` to be written, or its ``cwd``."""

    pid: int
    command: str
    path: bytes
    mode: str


def pids() -> Iterator[int]:
    """Yield the processes of this machine."""
    with suppress(OSError):
        for entry in os.scandir(PROC):
            if entry.name.isdecimal():
                yield int(entry.name)


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by a signal or a debugger; not known without /proc."""
    try:
        return _stat_fields(pid)[0] in STOPPED
    except OSError:
        return False


def ancestors() -> set[int]:
    """Return the processes above this one."""
    found: set[int] = set()
    pid = os.getppid()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            pid = int(_stat_fields(pid)[1])
        except OSError:
            break
    return found


def command(pid: int) -> str:
    """Return the command line of a process, or its name in brackets; empty if it has ended."""
    try:
        line = (PROC / str(pid) / "cmdline").read_bytes()
        name = (PROC / str(pid) / "comm").read_bytes()
    except OSError:
        return ""
    words = os.fsdecode(line).replace("\0", " ").strip()
    return words or f"[{os.fsdecode(name).strip()}]"


def open_files(root: bytes, ignore: Collection[int] = ()) -> list[OpenFile]:
    """Return what other processes write to or stand in, at and below a directory.

    ``root`` is a real path. Open for reading alone does not count. This process and those of
    ``ignore`` are left out. It never raises.
    """
    own = {os.getpid(), *ignore}
    found = []
    for pid in pids():
        if pid in own:
            continue
        used = sorted(set(_used(_PROC + b"/%d/" % pid, root)))
        if used:
            said = command(pid)
            found += [OpenFile(pid, said, path, mode) for path, mode in used]
    return found


def _used(process: bytes, root: bytes) -> Iterator[tuple[bytes, str]]:
    """Yield paths and modes of one process."""
    with suppress(OSError):
        place = os.readlink(process + b"cwd")
        if _is_inside(place, root):
            yield place, CWD
    with suppress(OSError):
        for entry in os.scandir(process + b"fd"):
            with suppress(OSError, ValueError):
                place = os.readlink(entry.path)
                if _is_inside(place, root) and _is_writable(process + b"fdinfo/" + entry.name):
                    yield place, WRITE
    with suppress(OSError):
        yield from ((place, MAPPED) for place in mapped(process + b"maps", root))


def mapped(maps: bytes, root: bytes) -> Iterator[bytes]:
    """Yield the files that are mapped shared and writable: writes to them show in no descriptor.

    ``maps`` is the file of that name of a process, ``root`` a real path. Raises ``OSError``.
    """
    with open(maps, "rb", buffering=0) as file:
        data = file.readall()
    if root not in data:
        return
    for line in data.split(b"\n"):
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[1][1:2] == b"w" and fields[1][3:4] == b"s":
            place = fields[5].replace(b"\\012", b"\n")
            if _is_inside(place, root):
                yield place


def _is_inside(place: bytes, root: bytes) -> bool:
    """Whether a path is the root or below it; one that was deleted is nowhere."""
    inside = place == root or place.startswith(root.rstrip(b"/") + b"/")
    return inside and not (place.endswith(_DELETED) and not os.path.lexists(place))


def _is_writable(fdinfo: bytes) -> bool:
    with open(fdinfo, "rb") as file:
        for line in file:
            if line.startswith(b"flags:"):
                return int(line.split()[1], 8) & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)
    return False


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of a process's stat from its state on."""
    stat = (PROC / str(pid) / "stat").read_text(errors="replace")
    # The command's name, in parentheses, may hold spaces; fields are counted from after it.
    return stat.rpartition(")")[2].split()
