"""Writing the client into the helper's directory: in C where a compiler is at hand, else Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import msgspec

from mulligan import procfs
from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.layout import sync_directory, write_file
from mulligan.resident.place import CLIENT, helper_directory, make_directory

COMPILER_SECONDS = 60.0
MAX_SHEBANG = 120
"""The longest first line of a script that every system takes."""

HOOK = ("hook", "--helper")
"""The words after Mulligan's own command that handle a hook and start the helper."""

VERSION_FILE = "hook.version"
"""Beside the client: the version that it was written by."""


class Client(msgspec.Struct, frozen=True):
    """A client: where it is, and what it was made with; ``path`` is None if none can be made."""

    path: Path | None
    language: str


def install_client(
    state: Path,
    version: str,
    command: Sequence[str],
    *,
    compiler: str | None = None,
    failpoint: FailpointHook = ignore,
) -> Client:
    """Write the client, and return it. Idempotent.

    ``command`` handles a hook in a fresh process. ``compiler`` is the C compiler to use, by default
    the system's; an empty one means none.
    """
    directory = make_directory(state)
    _sweep(directory)
    found = shutil.which("cc") if compiler is None else compiler
    made = _compiled(directory, version, command, found) if found else None
    if made is not None:
        return _put(directory, made, version, "C", failpoint)
    script = _script(directory, version, command)
    if script is None:
        return Client(None, "none")
    staged = directory / f".{CLIENT}-{os.getpid()}"
    write_file(staged, script.encode())
    return _put(directory, staged, version, "Python", failpoint)


def client_path(state: Path) -> Path:
    """Return where the client is, or will be."""
    return helper_directory(state) / CLIENT


def is_current(state: Path, version: str) -> bool:
    """Whether the client is there, and was written by this version."""
    directory = make_directory(state)
    try:
        known = (directory / VERSION_FILE).read_text()
    except OSError:
        return False
    return known == version and os.access(directory / CLIENT, os.X_OK)


def _put(
    directory: Path, staged: Path, version: str, language: str, failpoint: FailpointHook
) -> Client:
    """Replace the client by the new one, whole: a hook may start at any moment."""
    target = directory / CLIENT
    _sync(staged)
    failpoint(Failpoint.CLIENT_STAGED)
    staged.replace(target)
    # Before the settings name it, which are synced: agents report a hook that cannot be run.
    sync_directory(directory)
    failpoint(Failpoint.CLIENT_REPLACED)
    noted = directory / f".{VERSION_FILE}-{os.getpid()}"
    write_file(noted, version.encode())
    # After the client: a crash in between makes the next hook write it again.
    noted.replace(directory / VERSION_FILE)
    sync_directory(directory)
    failpoint(Failpoint.CLIENT_NOTED)
    return Client(target, language)


def _sync(staged: Path) -> None:
    """Make a program executable and durable, before its name leads to it."""
    handle = os.open(staged, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(handle, 0o700)
        os.fsync(handle)
    finally:
        os.close(handle)


def _sweep(directory: Path) -> None:
    """Remove what writers left that were killed."""
    for path in directory.glob(".hook*-*"):
        writer = path.name.rpartition("-")[2].removesuffix(".c")
        if (
            writer.isdecimal()
            and int(writer) != os.getpid()
            and procfs.started(int(writer)) is None
        ):
            path.unlink(missing_ok=True)


def _compiled(directory: Path, version: str, command: Sequence[str], compiler: str) -> Path | None:
    """Return the compiled client; None if the compiler cannot make one here."""
    source = directory / f".{CLIENT}-{os.getpid()}.c"
    target = directory / f".{CLIENT}-{os.getpid()}"
    words = ", ".join(_c_string(word) for word in command)
    defined = {
        "DIRECTORY": _c_string(str(directory)),
        "VERSION": _c_string(version),
        "COMMAND": words,
    }
    head = "".join(f"#define {name} {value}\n" for name, value in defined.items())
    source.write_text(head + _source("client.c"))
    try:
        done = subprocess.run(
            [compiler, "-O2", "-o", str(target), str(source)],
            capture_output=True,
            timeout=COMPILER_SECONDS,
        )
    # Without a compiler that works, the client in Python does the same, more slowly.
    except (OSError, subprocess.TimeoutExpired):
        return None
    finally:
        source.unlink(missing_ok=True)
    if done.returncode != 0:
        target.unlink(missing_ok=True)
        return None
    return target


def _script(directory: Path, version: str, command: Sequence[str]) -> str | None:
    """Return the client in Python; None if no first line can name this interpreter."""
    first = f"#!{sys.executable} -IS"
    if len(first) > MAX_SHEBANG or " " in sys.executable:
        return None
    text = _source("client.py")
    for name, value in (
        ('DIRECTORY = ""', f"DIRECTORY = {str(directory)!r}"),
        ('VERSION = ""', f"VERSION = {version!r}"),
        ("COMMAND: list[str] = []", f"COMMAND: list[str] = {list(command)!r}"),
    ):
        text = text.replace(name, value, 1)
    return f"{first}\n{text}"


def _source(name: str) -> str:
    return files("mulligan.resident").joinpath(name).read_text("utf-8")


def _c_string(text: str) -> str:
    """Return a text as a string of C, byte by byte where that is safer."""
    data = os.fsencode(text)
    plain = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 /._-+@,:=")
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in data) + '"'
