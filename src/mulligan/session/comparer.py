"""Comparing points of a session: differences, and what an undo or a redo would do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from mulligan.document.values import PathLike
from mulligan.model import Path, Plan, Point, UndoMode
from mulligan.session.history import History
from mulligan.session.write.stored_files import StoredFiles
from mulligan.session.write.targets import Targets
from mulligan.session.write.writer import Writer
from mulligan.timeline.diff import Diff, diff, known_parts

if TYPE_CHECKING:  # only previews of undo and redo need it
    from mulligan.session.write.restorer import Restorer


class RestorePreview(msgspec.Struct, frozen=True):
    """What an undo or a redo would do to state and files, and to which parts of them.

    ``only`` and ``workspace`` are as in ``Restored``.
    """

    state: Diff
    files: Plan
    only: tuple[Path, ...] | None
    workspace: tuple[str, ...] | None


class Comparer:
    """Compares the points of one session; writes nothing."""

    def __init__(
        self,
        writer: Writer,
        history: History,
        targets: Targets,
        files: StoredFiles,
        restorer: Callable[[], Restorer],
    ) -> None:
        self._writer = writer
        self._history = history
        self._targets = targets
        self._files = files
        self._restorer = restorer

    def diff(
        self,
        one: Point,
        other: Point | None,
        only: Sequence[PathLike] | None,
        *,
        allow_pruned: bool = False,
    ) -> Diff:
        """Return what differs between a point and another, or the present if that is None.

        With ``allow_pruned``, files that were pruned are not compared.
        """
        here = other or self._history.head()
        beside = self._targets.find(here, allow_pruned=True)
        target = self._targets.find(one, only, beside, allow_pruned=allow_pruned)
        if target.tree is not None and beside.tree is None and other is not None:
            # Files are compared: if there were some and they were pruned, this raises.
            beside = self._targets.find(here, allow_pruned=allow_pruned)
        found = diff(one, beside.point, target.document, beside.document, target.only)
        if target.tree is None:
            return found
        if other is None:
            # No capture of another thread may replace the index while it is compared with.
            with self._writer.exclusive():
                changes = self._files.changes_until_now(target.tree, target.paths)
        elif beside.tree is None:
            return found
        else:
            changes = self._files.changes(target.tree, beside.tree, target.paths)
        return msgspec.structs.replace(found, files=tuple(changes))

    def preview(self, mode: UndoMode) -> RestorePreview:
        """Return what an undo or a redo would do, depending on the mode."""
        target = self._restorer().undo_target(mode)
        with self._writer.exclusive():
            plan = self._files.plan(target.point, target.tree, target.paths, target.held)
        here, document = self._history.head(), self._writer.document()
        known = known_parts(document, target.document, target.only)
        found = diff(here, target.point, document, target.document, known)
        only = None if target.only is None else tuple(target.only)
        return RestorePreview(found, plan, only, target.workspace)
