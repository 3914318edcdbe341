"""What a power cut could take from a program's files: its system calls, played on a model.

The model is the harshest that POSIX allows. The name of a new, renamed or deleted file is durable
once its directory is synced after it, the bytes and attributes of a file once that file is;
nothing becomes durable by itself.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

CHANGES = (
    "openat,mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat,rmdir,symlink,symlinkat,"
    "link,linkat,write,pwrite64,ftruncate,fchmod,fchmodat,utimensat,fsetxattr,fremovexattr"
)
SYNCS = "fsync,fdatasync,syncfs"

_LINE = re.compile(
    r"(?P<at>[\d.]+) (?P<call>\w+)\((?P<given>.*)\) += (?P<result>\d+)(<(?P<made>.*)>)?"
)
_GIVEN = re.compile(r'"((?:[^"\\]|\\.)*)"(?:\.\.\.)?|(?:AT_FDCWD|\d+)<([^>]*)>|([^,\s]+)')

Call = tuple[str, list[str], str]
"""A system call: its name, its arguments, and the path that it opened."""

Dirt = set[tuple[str, str]]
"""What is not durable: ``names`` of a directory, or ``content`` of a file or directory."""


def recorded(command: Sequence[str], place: Path, *, cwd: Path, env: dict[str, str]) -> list[Call]:
    """Run a command and return its calls that change or sync files: name, arguments, new path."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    place.mkdir()
    tracing = ["strace", "-ff", "-ttt", "-y", "-s", "4096", "-o", str(place / "trace")]
    tracing += ["-e", f"trace={CHANGES},{SYNCS}", "-e", "signal=none"]
    done = subprocess.run(
        [*tracing, *command], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    if "PTRACE" in done.stderr or "ptrace" in done.stderr:
        pytest.skip(f"tracing is not permitted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return [call for _, call in sorted(_parsed(place, cwd))]


def _parsed(place: Path, cwd: Path) -> Iterator[tuple[float, Call]]:
    for file in place.glob("trace.*"):
        for line in file.read_text().splitlines():
            if (found := _LINE.fullmatch(line)) is not None:
                given = ["".join(parts) for parts in _GIVEN.findall(found["given"])]
                if found["call"] in ("mkdir", "rename", "unlink", "rmdir", "symlink", "link"):
                    given = [os.path.join(cwd, path) for path in given]
                yield float(found["at"]), (found["call"], given, found["made"] or "")


def lost(calls: Iterable[Call], *, whole: bool) -> Dirt:
    """Return what is not durable after the calls; ``whole`` if ``syncfs`` does what it says."""
    dirt: Dirt = set()
    for call, given, made in calls:
        _play(call, given, made, dirt, whole)
    return dirt


def _play(call: str, given: list[str], made: str, dirt: Dirt, whole: bool) -> None:
    if call in ("fsync", "fdatasync"):
        dirt -= {("names", given[0]), ("content", given[0])}
    elif call == "syncfs":
        if whole:
            dirt.clear()
    elif call == "openat":
        if "O_CREAT" in given[2]:
            dirt |= {("names", _parent(made)), ("content", made)}
    elif call in ("mkdir", "mkdirat"):
        path = _path(given, call.endswith("at"))
        dirt |= {("names", _parent(path)), ("content", path)}
    elif call.startswith("rename"):
        _rename(given, call, dirt)
    elif call in ("unlink", "rmdir", "unlinkat"):
        path = _path(given, call.endswith("at"))
        dirt -= {("content", path), ("names", path)}
        dirt.add(("names", _parent(path)))
    elif call.startswith(("symlink", "link")):
        new = given[1:] if call == "symlinkat" else given[2:]
        path = _path(new, True) if call.endswith("at") else given[1]
        dirt.add(("names", _parent(path)))
    elif call == "utimensat" and given[1] != "NULL":
        path = _path(given, True)
        dirt.add(("names", _parent(path)) if "AT_SYMLINK_NOFOLLOW" in given else ("content", path))
    else:
        dirt.add(("content", given[0]))


def _rename(given: list[str], call: str, dirt: Dirt) -> None:
    if call == "rename":
        old, new = given[:2]
    else:
        old, new = _path(given[:2], True), _path(given[2:4], True)
    exchanged = "RENAME_EXCHANGE" in given[-1]
    moved = {item for item in dirt if _is_below(item[1], old)}
    back = {item for item in dirt if _is_below(item[1], new)}
    dirt -= moved | back
    dirt |= {(kind, new + path[len(old) :]) for kind, path in moved}
    if exchanged:
        dirt |= {(kind, old + path[len(new) :]) for kind, path in back}
    dirt |= {("names", _parent(old)), ("names", _parent(new))}


def below(dirt: Dirt, place: Path) -> Dirt:
    """Return what would be lost at and below a place, its own name included."""
    named = {("names", str(above)) for above in place.parents}
    return {item for item in dirt if _is_below(item[1], str(place)) or item in named}


def _is_below(path: str, place: str) -> bool:
    return path == place or path.startswith(place + "/")


def _path(given: list[str], at: bool) -> str:
    if not at:
        return given[0]
    return given[1] if given[1].startswith("/") else f"{given[0]}/{given[1]}"


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
