"""Differences between the contents of files: unified diffs of text, sizes of everything else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mulligan.errors import PathNotFound, PurgedContent
from mulligan.views.encoding import clean

if TYPE_CHECKING:
    from mulligan.model import FileChange, Point
    from mulligan.session import Session

MAX_DIFF_BYTES = 1 << 20
"""Larger files are compared line by line only on request."""

MAX_READ_BYTES = 64 << 20
"""Larger files are never compared: they would not fit into memory."""

NO_NEWLINE = "\\ No newline at end of file"
_LOOKED_AT = 8000
"""How far into a file a zero byte makes it binary, as in git."""


WhyNot = Literal["binary", "too_large", "unreadable"]


@dataclass(frozen=True)
class FileDiff:
    """What differs inside a file: the lines of a unified diff, or why there are none.

    ``size`` is that of the larger side in bytes, ``problem`` why a file cannot be read.
    """

    lines: tuple[str, ...] = ()
    why_not: WhyNot | None = None
    size: int = 0
    problem: str = ""

    @property
    def added(self) -> int:
        """How many lines came."""
        return sum(line.startswith("+") for line in self.lines[2:])

    @property
    def removed(self) -> int:
        """How many lines went."""
        return sum(line.startswith("-") for line in self.lines[2:])

    @property
    def text(self) -> str | None:
        """The unified diff as one text; None if there is none."""
        return None if self.why_not else "".join(f"{line}\n" for line in self.lines)


class FileContents:
    """Reads files at both ends of a difference; without a point they are those on the disk."""

    def __init__(self, session: Session, before: Point, after: Point | None, root: Path) -> None:
        self._session = session
        self._before = before
        self._after = after
        self._root = root

    def patch(self, change: FileChange, *, full: bool = False) -> FileDiff:
        """Return what differs in the content of a file."""
        if change.kind == "directory" or change.change in ("attributes", "renamed"):
            return FileDiff()
        largest = max(change.old_size or 0, change.size or 0)
        if largest > (MAX_READ_BYTES if full else MAX_DIFF_BYTES):
            return FileDiff(why_not="too_large", size=largest)
        try:
            old = b"" if change.change == "added" else self._old(change.os_path)
            new = b"" if change.change == "removed" else self._new(change.os_path)
        except (PathNotFound, PurgedContent, OSError) as error:
            return FileDiff(why_not="unreadable", problem=str(error))
        if _is_binary(old) or _is_binary(new):
            return FileDiff(why_not="binary")
        return FileDiff(tuple(_unified(change, old, new)))

    def _old(self, path: str) -> bytes:
        return self._session.files.read(self._before, path)

    def _new(self, path: str) -> bytes:
        if self._after is not None:
            return self._session.files.read(self._after, path)
        place = os.fsencode(self._root / path)
        if os.path.islink(place):
            return os.readlink(place)
        with open(place, "rb") as file:
            return file.read(MAX_READ_BYTES)


def _unified(change: FileChange, old: bytes, new: bytes) -> Iterator[str]:
    name = clean(change.path)
    before = "/dev/null" if change.change == "added" else f"a/{name}"
    after = "/dev/null" if change.change == "removed" else f"b/{name}"
    for line in unified_diff(_lines(old), _lines(new), before, after):
        yield _printable(line.removesuffix("\n"))
        if not line.endswith("\n"):
            yield NO_NEWLINE


def _lines(content: bytes) -> list[str]:
    """Return the lines with their ends; only a newline ends one."""
    *whole, rest = content.decode("utf-8", "replace").split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


def _printable(line: str) -> str:
    """Return a line without what would command a terminal; tabs and a CR at its end stay."""
    kept = line.removesuffix("\r")
    return "\t".join(clean(part) for part in kept.split("\t")) + line[len(kept) :]


def _is_binary(content: bytes) -> bool:
    return b"\0" in content[:_LOOKED_AT]
