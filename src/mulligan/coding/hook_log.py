"""Notes about hooks that could not do their work: one line each, in a file beside the stores.

A hook must not disturb its agent, so what went wrong is written here, and ``mulligan doctor`` shows
it. The file is one per user, because a hook may not even find its store.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

NAME = "hooks.log"
OLD = "hooks.log.1"

MAX_BYTES = 256 << 10
"""From this size on, the file becomes the old one, and a new one begins."""

MAX_LINE = 500


def note(directory: Path, at: datetime, about: str, said: str) -> bool:
    """Append a line to the log in a directory; return whether that was possible."""
    line = " ".join(f"{at:%Y-%m-%dT%H:%M:%SZ} {about}: {said}".split())
    data = line[:MAX_LINE].encode("utf-8", "backslashreplace") + b"\n"
    file = directory / NAME
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if file.exists() and file.stat().st_size > MAX_BYTES:
            # Two hooks at once may both rename; the log then keeps fewer old lines, and no hook
            # fails.
            file.rename(directory / OLD)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(file, flags, 0o600)
        try:
            # One write per line: those of hooks that run at the same time do not mix.
            os.write(handle, data)
        finally:
            os.close(handle)
    # A hook must never disturb its agent, not even to say that it cannot write its log.
    except OSError:
        return False
    return True


def mentions(directory: Path, text: str) -> bool:
    """Return whether a line of the log has a text in it."""
    return any(text in line for line in _lines(directory))


def last_notes(directory: Path, count: int) -> list[str]:
    """Return the newest lines of the log, oldest first."""
    return _lines(directory)[-count:]


def _lines(directory: Path) -> list[str]:
    found: list[str] = []
    for name in (OLD, NAME):
        try:
            found += (directory / name).read_text(errors="replace").splitlines()
        except OSError:
            continue  # there is none, or it is not ours
    return found
