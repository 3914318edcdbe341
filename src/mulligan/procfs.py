"""Other processes, as ``/proc`` shows them: the one place where its files are parsed.

Processes that cannot be read belong to another user or have just ended; they are skipped. Without
``/proc``, no process is found.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

PROC = Path("/proc")

_STOPPED = "Tt"
"""The states of a process that was stopped, by a signal or a debugger."""

_ENDED = "ZX"
"""The states of a process that has ended, and that its parent has not waited for."""

WRITE = "write"
MAPPED = "mapped"
CWD = "cwd"

EXEC_SECONDS = 1.0
"""How long to wait for the variables of a process that is in the middle of an exec."""

_EXEC_POLL_SECONDS = 0.0005

_PROC = os.fsencode(PROC)
_DELETED = b" (deleted)"


class OpenFile(msgspec.Struct, frozen=True):
    """A path that a process uses: open for ``write``, ``mapped`` to be written, or its ``cwd``."""

    pid: int
    command: str
    path: bytes
    mode: str


class Stat(msgspec.Struct, frozen=True):
    """What ``/proc/PID/stat`` says of a process; times are in ticks, ``started`` since boot."""

    state: str
    parent: int
    group: int
    user: int
    system: int
    waited_user: int
    waited_system: int
    started: int
    memory: int
    variables_start: int
    variables_end: int

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped, by a signal or a debugger."""
        return self.state in _STOPPED

    @property
    def has_ended(self) -> bool:
        """Whether it has ended: a zombie keeps its entry until its parent has waited for it."""
        return self.state in _ENDED

    @property
    def has_variables(self) -> bool:
        """Whether it has variables, or will have some when its exec is complete.

        An exec shows the new memory first, and only then where its variables are. Kernel threads
        and processes that ended have no memory.
        """
        return self.memory > 0 and not 0 < self.variables_end == self.variables_start


def stat(pid: int) -> Stat | None:
    """Return the numbers of a process; None if it is gone or there is no /proc."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command's name, in parentheses, may hold spaces; fields are counted from after it.
    fields = text.rpartition(")")[2].split()
    numbers = (*fields[1:3], *fields[11:15], *fields[19:21], *fields[47:49])
    return Stat(fields[0], *map(int, numbers))


def status(pid: int) -> dict[str, str] | None:
    """Return the fields of ``/proc/PID/status`` by name; None if it cannot be read."""
    try:
        text = (PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return None
    fields = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in fields}


def variables(pid: int) -> dict[str, str] | None:
    """Return the variables that a process was started with; None if they cannot be read.

    A process in the middle of an exec shows none for a moment. They are waited for: an orphan that
    just starts must not look like a process of another program.
    """
    # The limit is for systems that never say where the variables are, and for a hanging disk.
    deadline = time.monotonic() + EXEC_SECONDS
    while True:
        try:
            data = (PROC / str(pid) / "environ").read_bytes()
        except OSError:
            return None
        if data or not _has_variables(pid) or time.monotonic() > deadline:
            break
        time.sleep(_EXEC_POLL_SECONDS)
    return dict(part.split("=", 1) for part in os.fsdecode(data).split("\0") if "=" in part)


def _has_variables(pid: int) -> bool:
    found = stat(pid)
    return found is not None and found.has_variables


def started(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; None if it has ended."""
    found = stat(pid)
    return None if found is None or found.has_ended else found.started


def is_available() -> bool:
    """Whether there is a ``/proc``."""
    return PROC.is_dir()


def pids() -> list[int]:
    """Return the processes of this machine."""
    with suppress(OSError):
        return [int(name) for name in os.listdir(PROC) if name.isdecimal()]
    return []


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by a signal or a debugger; False without /proc."""
    found = stat(pid)
    return found is not None and found.is_stopped


def ancestors() -> set[int]:
    """Return the processes above this one."""
    found: set[int] = set()
    pid = os.getppid()
    # A parent that ended meanwhile, and whose number was reused, could lead in a circle.
    while pid > 0 and pid not in found:
        found.add(pid)
        above = stat(pid)
        pid = 0 if above is None else above.parent
    return found


def name(pid: int) -> str:
    """Return the name of a process's program, cut after 15 bytes; empty if it has ended."""
    try:
        return os.fsdecode((PROC / str(pid) / "comm").read_bytes()).strip()
    except OSError:
        return ""


def command(pid: int) -> str:
    """Return the command line of a process, or its name in brackets; empty if it has ended."""
    try:
        line = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    words = os.fsdecode(line).replace("\0", " ").strip()
    return words or f"[{name(pid)}]"


def open_files(root: bytes, ignore: Collection[int] = ()) -> list[OpenFile]:
    """Return what other processes write to, or have as working directory, at and below a directory.

    ``root`` is a real path. Files open only for reading do not count. This process and those of
    ``ignore`` are left out. It never raises.
    """
    own = {os.getpid(), *ignore}
    found = []
    for pid in pids():
        # Our own descriptors are the capture's, and say nothing about other programs.
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
    # Most processes map nothing below the root; splitting all their lines would dominate a capture.
    if root not in data:
        return
    for line in data.split(b"\n"):
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[1][1:2] == b"w" and fields[1][3:4] == b"s":
            # The kernel escapes only the newline in this file.
            place = fields[5].replace(b"\\012", b"\n")
            if _is_inside(place, root):
                yield place


def has_mapped(pid: int, file: Path) -> bool:
    """Whether a process, or a thread, has a file mapped. Raises ``OSError``."""
    inode, name = str(file.stat().st_ino), file.name
    lines = (PROC / str(pid) / "maps").read_text(errors="replace").splitlines()
    # By inode and name: the device number in maps differs from that of stat on btrfs and overlayfs.
    return any(line.split()[4] == inode and line.endswith(name) for line in lines)


def has_open(pid: int, handle: int) -> bool:
    """Whether a process has the file open that this one has under ``handle``."""
    with suppress(OSError):
        own = os.fstat(handle)
        entries = (PROC / str(pid) / "fd").iterdir()
        return any(os.path.samestat(entry.stat(), own) for entry in entries)
    return False


def flock_pids(inode: int) -> list[int]:
    """Return the processes that hold a ``flock`` on an inode, of whatever device."""
    try:
        # 1: FLOCK  ADVISORY  WRITE 4711 08:01:131073 0 EOF; a lock that is waited for has an arrow
        lines = [line.split() for line in (PROC / "locks").read_text().splitlines()]
    except OSError:
        return []
    # A waiting process is listed with an arrow and one word more, and holds nothing.
    locks = [words for words in lines if words[1:2] == ["FLOCK"] and len(words) > 5]
    return [int(words[4]) for words in locks if words[5].rpartition(":")[2] == str(inode)]


def _is_inside(place: bytes, root: bytes) -> bool:
    """Whether a path is the root or below it, and was not deleted."""
    inside = place == root or place.startswith(root.rstrip(b"/") + b"/")
    return inside and not (place.endswith(_DELETED) and not os.path.lexists(place))


def _is_writable(fdinfo: bytes) -> bool:
    with open(fdinfo, "rb") as file:
        for line in file:
            if line.startswith(b"flags:"):
                return int(line.split()[1], 8) & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)
    return False
