"""The system and the versions of tools that a checkpoint records, and their cache in the store.

Asking git for its version takes longer than a whole checkpoint of a small project, and each
checkpoint on the command line is a new process; ``platform.platform()`` also runs a program. So the
answers are cached in the store's ``tmp/`` together with what they depend on: the git program, the
system's name, and the directory of installed packages, whose time changes with every installation.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from mulligan.decoding import ready

GIT_TIMEOUT_SECONDS = 5.0
"""Time limit for git to report its version; after that, a checkpoint is taken without it."""


class _Stamp(msgspec.Struct, frozen=True):
    """Identity and times of a file or directory; a write or a replacement changes the stamp.

    ``ctime``, too: an installer may give a new program the size and the time of the old one.
    """

    path: str
    ino: int
    size: int
    mtime: int
    ctime: int


class ToolVersions(msgspec.Struct, frozen=True):
    """The full name of the system, and the versions of tools."""

    platform: str
    versions: dict[str, str]


class _Sources(msgspec.Struct, frozen=True):
    """What the answers depend on; they are valid while it is equal."""

    system: str
    packages: _Stamp | None
    git: _Stamp | None


class _Cached(msgspec.Struct, frozen=True):
    """The answers, and what they depend on."""

    sources: _Sources
    tools: ToolVersions


def find_tools(cache: Path | None) -> ToolVersions:
    """Return the system, and the versions of Mulligan, LMDB and git.

    ``cache`` is a file that may hold them; otherwise it is written.
    A tool of unknown version is left out.
    """
    git = _stamp(_program("git"))
    sources = _Sources(f"{' '.join(os.uname())} {sys.version}", _stamp(_packages()), git)
    known = _read(cache)
    if known is not None and known.sources == sources:
        return known.tools
    import platform  # slow to ask

    found = _installed()
    version = None if git is None else _git_version(git.path)
    if version is not None:
        found["git"] = version
    tools = ToolVersions(platform.platform(), found)
    # Do not cache a missing answer: git may have been slow only this time.
    if cache is not None and (git is None or version is not None):
        _write(cache, _Cached(sources, tools))
    return tools


def _installed() -> dict[str, str]:
    from importlib.metadata import version  # slow to import

    return {"mulligan": version("mulligan"), "lmdb": version("lmdb")}


def _git_version(git: str) -> str | None:
    """Return git's version; None if it fails or hangs, which must not fail a checkpoint."""
    import subprocess  # slow to import

    try:
        done = subprocess.run(
            [git, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=GIT_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = done.stdout.decode(errors="replace")
    return said.removeprefix("git version").strip() or None


def _program(name: str) -> str | None:
    """Return the path of a program on PATH; ``shutil.which`` is slow to import."""
    places = (os.path.join(place, name) for place in os.get_exec_path())
    return next((p for p in places if os.path.isfile(p) and os.access(p, os.X_OK)), None)


def _packages() -> str | None:
    """Return the directory that LMDB is installed in, and Mulligan's metadata beside it."""
    package = getattr(sys.modules.get("lmdb"), "__file__", None)
    return None if package is None else os.path.dirname(os.path.dirname(package))


def _stamp(path: str | None) -> _Stamp | None:
    if path is None:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return None
    times = status.st_mtime_ns, status.st_ctime_ns
    return _Stamp(path, status.st_ino, status.st_size, *times)


def _read(cache: Path | None) -> _Cached | None:
    if cache is None:
        return None
    try:
        return msgspec.json.decode(cache.read_bytes(), type=ready(_Cached))
    except (OSError, ValueError):  # msgspec's errors are of the second kind
        return None


def _write(cache: Path, found: _Cached) -> None:
    # Renamed into place, so that no reader sees a partial file; not synced: it is a cache.
    temporary = cache.with_name(f"{cache.name}.{os.getpid()}")
    try:
        temporary.write_bytes(msgspec.json.encode(found))
        temporary.replace(cache)
    except OSError:
        # Without the cache, the next checkpoint asks again.
        with suppress(OSError):
            temporary.unlink()
