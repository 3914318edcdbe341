"""Parts of a session, named relative to the current directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mulligan import Point, Session

WORKSPACE = "workspace"


def parts_from_here(
    only: tuple[str, ...], directory: Path | None, session: Session, points: Sequence[Point]
) -> tuple[str, ...] | None:
    """Return the parts with file paths relative to the top of the workspace.

    ``./app.py`` is always relative to the current directory. In a subdirectory, so is ``app.py``,
    unless it is a component of the state or a file at the top. A file at both places is an error,
    because either may be meant.
    """
    if directory is None or not only:
        return only or None
    here = _Here(directory, session, points)
    return tuple(here.part(part) for part in only)


class _Here:
    """The current directory, as a path inside the workspace."""

    def __init__(self, directory: Path, session: Session, points: Sequence[Point]) -> None:
        self._root = directory
        self._session = session
        self._points = points

    def part(self, part: str) -> str:
        """Return a part relative to the top."""
        if part.startswith(("./", "../", "/")):
            return self._file(part)
        # At the top of the workspace both readings are the same path.
        inside = Path.cwd() != self._root.absolute() and Path.cwd().is_relative_to(self._root)
        first, *_ = names = part.split("/")
        if not inside or first == WORKSPACE or {".", ".."} & {*names} or self._is_state(first):
            return part
        named = self._file(f"./{part}")
        if not self._has(named):
            return part
        if self._has(f"{WORKSPACE}/{part}"):
            raise click.UsageError(
                f"{part} is a file here and one at the top of the workspace: "
                f"name ./{part} or {WORKSPACE}/{part}."
            )
        return named

    def _file(self, path: str) -> str:
        inner = Path(os.path.relpath(os.path.abspath(path), self._root.absolute()))
        if ".." in inner.parts:
            raise click.UsageError(f"{path} is not in the workspace, {self._root}.")
        return WORKSPACE if inner == Path() else f"{WORKSPACE}/{inner}"

    def _is_state(self, name: str) -> bool:
        return any(name in self._session.state.at(point).get() for point in self._points)

    def _has(self, named: str) -> bool:
        """Whether the file exists, now or at one of the points."""
        from mulligan.errors import PathNotFound, UnknownPoint

        if os.path.lexists(self._root / named.removeprefix(f"{WORKSPACE}/")):
            return True
        for point in self._points:
            try:
                self._session.internal.plan_copy(point, (named,))
            except (PathNotFound, UnknownPoint):  # no such file, or no files at all
                continue
            return True
        return False
