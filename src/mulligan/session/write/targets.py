"""Targets: what a point and the names of parts mean for a restore or a diff."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from mulligan.document.document import Document
from mulligan.document.fold import STATE
from mulligan.document.values import PathLike, parse_path
from mulligan.errors import PathNotFound
from mulligan.model import Path, Plan, Point
from mulligan.session.write.files import WORKSPACE, Files
from mulligan.session.write.restorer import Target
from mulligan.session.write.writer import Writer
from mulligan.timeline.diff import Diff
from mulligan.workspace.entries import TreePath, shown
from mulligan.workspace.restore.plan import tree_path, unescaped
from mulligan.workspace.workspace import Workspace


class RestorePreview(msgspec.Struct, frozen=True):
    """What an undo or a redo would do to state and files, and to which parts of them.

    ``only`` and ``workspace`` are as in ``Restored``.
    """

    state: Diff
    files: Plan
    only: tuple[Path, ...] | None
    workspace: tuple[str, ...] | None


class Targets:
    """Finds targets for one session, with files if it has a workspace."""

    def __init__(
        self,
        writer: Writer,
        files: Files,
        workspace: Workspace | None,
        document_at: Callable[[Point], Document],
    ) -> None:
        self._writer = writer
        self._files = files
        self._workspace = workspace
        self._document_at = document_at

    def find(
        self,
        place: Point,
        only: Sequence[PathLike] | None = None,
        beside: Target | None = None,
    ) -> Target:
        """Return where a restore goes, with the files of the point if there are any.

        What a part names is looked up ``beside``, too.
        """
        document = self._document_at(place)
        held = self._files.held_at(place) if self._workspace is not None else None
        tree = held.tree if held else None
        if only is None:
            return Target(place, document, None, tree, held=held)
        known = [Target(place, document, None, tree), *([beside] if beside else [])]
        state, files = self._parts(only, known)
        return Target(place, document, state, tree if files != [] else None, files, held)

    def _parts(
        self, only: Sequence[PathLike], known: Sequence[Target]
    ) -> tuple[list[Path], list[TreePath] | None]:
        """Sort parts into state paths and files; files are None for the whole workspace.

        ``workspace`` is all files and ``workspace/PATH`` some; otherwise what the state has a
        component for is state, and what the tree has is a file.
        """
        state: list[Path] = []
        files: list[TreePath] = []
        whole = False
        components = {*self._writer.components()}
        for document in (target.document for target in known):
            components |= {*document.entries(document.resolved(document.find(STATE)))}
        for part in only:
            path = self._file_path(known, part) if self._workspace is not None else ()
            if path == (WORKSPACE,):
                whole = True
            elif path[:1] == (WORKSPACE,):
                files.append(self._named_file(known, path[1:]))
            elif path and path[0] not in components and self._has_file(known, path):
                files.append(path)
            else:
                state.append(parse_path(part))
        return state, None if whole else files

    def _file_path(self, known: Sequence[Target], part: PathLike) -> TreePath:
        """Return the path in a tree that a part names, as it is or as it is shown."""
        path = tree_path(part)
        other = unescaped(path)
        start = 1 if path[:1] == (WORKSPACE,) else 0
        if other != path and not self._has_file(known, path[start:]):
            return other if self._has_file(known, other[start:]) else path
        return path

    def _named_file(self, known: Sequence[Target], path: TreePath) -> TreePath:
        if not self._has_file(known, path):
            raise PathNotFound(
                f"There is no file {shown(path)!r}, neither now nor at the point.",
                hint="Name files and directories from the top of the workspace: src/app.py.",
            )
        return path

    def _has_file(self, known: Sequence[Target], path: TreePath) -> bool:
        trees = [target.tree for target in known if target.tree is not None]
        return any(self._workspace.has(tree, path) for tree in trees if self._workspace)
