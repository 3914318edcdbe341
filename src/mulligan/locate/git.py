"""Git repositories: find them without git, exclude stores from them, and protect the stores.

``git clean -fdx`` deletes ignored and untracked files but skips nested repositories, and so does
``git stash --all``. A store inside a work tree therefore looks like one: see :func:`guard`.
"""

from __future__ import annotations

import os
from pathlib import Path

from mulligan.layout import NAME, STAGING, sync_directory, write_file

EXCLUDED = (NAME, f"{STAGING}*")
"""Lines for ``info/exclude`` that keep stores and pointers out of ``git status`` and ``add``."""


def find_git(directory: Path) -> Path | None:
    """Return the git directory of the repository around a directory, worktrees included."""
    for place in (directory, *directory.parents):
        entry = place / ".git"
        if entry.is_dir():
            return entry
        if entry.is_file():
            text = entry.read_text(errors="replace").removeprefix("gitdir:").strip()
            return place / text
    return None


def exclude(directory: Path) -> bool:
    """Make git ignore stores and pointers in the work tree around a directory.

    Return False if there is no work tree, or its exclude file cannot be written. All worktrees of a
    repository share that file.
    """
    try:
        common = _common(directory)
        if common is None:
            return False
        (common / "info").mkdir(exist_ok=True)
        _add_lines(common / "info" / "exclude")
    except OSError:
        return False  # not our repository; git shows the file, nothing worse
    return True


def guard(store: Path) -> bool:
    """Make a store inside a work tree look like a nested repository, so that git skips it.

    Return whether it does. Where git does not ignore the store, the guard would make ``git add``
    fail, so the exclude file is written first.
    """
    marker = store / ".git"
    if (marker / "HEAD").is_file():
        return True
    if not exclude(store.parent):
        return False
    # Git recognises a repository by HEAD, objects and refs. HEAD comes last, so that a crash leaves
    # nothing that looks like one.
    for part in (marker, marker / "objects", marker / "refs"):
        part.mkdir(mode=0o700, exist_ok=True)
    write_file(marker / "HEAD", b"ref: refs/heads/none\n")
    for part in (marker, store):
        sync_directory(part)
    return True


def has_stash(directory: Path) -> bool:
    """Whether the repository around a directory has a stash."""
    common = _common(directory)
    return common is not None and (common / "logs" / "refs" / "stash").is_file()


def _common(directory: Path) -> Path | None:
    """Return the git directory shared by all worktrees of the repository around a directory."""
    git = find_git(directory)
    if git is None or not (git / "HEAD").is_file():
        return None
    shared = git / "commondir"
    common = git / shared.read_text(errors="replace").strip() if shared.is_file() else git
    return common if (common / "objects").is_dir() and (common / "refs").is_dir() else None


def _add_lines(file: Path) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(file, flags, 0o644), "r+b") as stream:
        known = stream.read()
        missing = [line for line in EXCLUDED if line.encode() not in known.splitlines()]
        if missing:
            start = b"" if known.endswith(b"\n") or not known else b"\n"
            stream.write(start + "".join(f"{line}\n" for line in missing).encode())
            stream.flush()
            # The exclude lines must be durable before the guard makes the store a nested
            # repository.
            os.fsync(stream.fileno())
