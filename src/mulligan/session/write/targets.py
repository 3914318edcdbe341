"""Targets: what a point and the names of parts mean for a restore or a diff."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mulligan.document.document import MISSING, Document
from mulligan.document.fold import LOST, STATE
from mulligan.document.values import PathLike, parse_path
from mulligan.errors import FilesPruned, PathNotFound
from mulligan.model import HeldFiles, Path, Point
from mulligan.session.names import WORKSPACE
from mulligan.session.write.damaged import intact_parts, refuse_damaged
from mulligan.session.write.restore_target import Target
from mulligan.session.write.stored_files import StoredFiles
from mulligan.session.write.writer import Writer
from mulligan.workspace.entries import TreePath, shown
from mulligan.workspace.restore.plan import tree_path, unescaped

if TYPE_CHECKING:  # it imports all that captures and restores
    from mulligan.workspace.workspace import Workspace


class Targets:
    """Finds targets for one session, with files if it has a workspace."""

    def __init__(
        self,
        writer: Writer,
        files: StoredFiles,
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
        *,
        allow_pruned: bool = False,
    ) -> Target:
        """Return the target of a restore, with the files of the point if there are any.

        Parts are also looked up in ``beside``. With ``allow_pruned``, a point whose files were
        pruned has none.
        """
        document = self._document_at(place)
        held = self._held(place, document, only, allow_pruned=allow_pruned)
        tree = held.tree if held else None
        if only is None:
            return Target(place, document, None, tree, held=held)
        known = [Target(place, document, None, tree), *([beside] if beside else [])]
        state, files = self._parts(only, known)
        return Target(place, document, state, tree if files != [] else None, files, held)

    def for_restore(self, place: Point, only: Sequence[PathLike] | None) -> Target:
        """Return the target of a restore; files that are named must exist there.

        Raises ``CheckpointDamaged`` if a repair found that something of it is lost.
        """
        self.refuse_damaged(place, only)
        target = self.find(place, only)
        if only is not None and target.paths != [] and target.tree is None:
            self._files.tree_at(target.point)  # raises: no checkpoint holds files
        return target

    def refuse_damaged(self, place: Point, only: Sequence[PathLike] | None) -> None:
        """Raise ``CheckpointDamaged`` if a restore would lack something."""
        record = self._writer.record
        is_own = place.session == record.name and record.origin is None
        # Nearly always nothing is lost, and nothing more is read.
        if not is_own or self._writer.document().find(LOST) is not MISSING:
            refuse_damaged(self._writer.engine, place, only)

    def intact_parts(self, place: Point) -> tuple[str, ...]:
        """Return the parts of a point that lack nothing."""
        document = self._document_at(place)
        held = self._held(place, document, None, allow_pruned=True)
        return intact_parts(self._writer.engine, place, document, held.tree if held else None)

    def _held(
        self,
        place: Point,
        document: Document,
        only: Sequence[PathLike] | None,
        *,
        allow_pruned: bool,
    ) -> HeldFiles | None:
        """Return the files of a point, if any; raise if they were pruned and are requested."""
        if self._workspace is None:
            return None
        try:
            return self._files.held_at(place)
        except FilesPruned:
            known = {(name,) for name in {*self._writer.components()} | _components(document)}
            is_state = only is not None and all(tree_path(part)[:1] in known for part in only)
            if not allow_pruned and not is_state:
                raise
            return None

    def _parts(
        self, only: Sequence[PathLike], known: Sequence[Target]
    ) -> tuple[list[Path], list[TreePath] | None]:
        """Sort parts into state paths and files; files are None for the whole workspace.

        ``workspace`` means all files, ``workspace/PATH`` some. Any other part is state if the state
        has such a component, and a file if the tree has it.
        """
        state: list[Path] = []
        files: list[TreePath] = []
        whole = False
        components = {*self._writer.components()}
        for document in (target.document for target in known):
            components |= _components(document)
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
        """Return the path in a tree that a part names, literally or in its escaped form."""
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


def _components(document: Document) -> set[str]:
    """Return the names of the state's top-level parts."""
    return {*document.entries(document.resolved(document.find(STATE)))}
