"""The files of a session: read and copied from its points, and a restore that is not finished."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path as OsPath
from typing import TYPE_CHECKING

import msgspec

from mulligan.session import arguments
from mulligan.session.write.pending_restore import read_pending_restore

if TYPE_CHECKING:
    from mulligan.document.values import PathLike
    from mulligan.engine import Engine
    from mulligan.model import PendingRestore, Plan, Problem, Restored
    from mulligan.session.file_side import FileSide
    from mulligan.session.history import History
    from mulligan.session.write.writer import Writer
    from mulligan.timeline.points import PointLike


class Files:
    """The workspace files of a session, from ``session.files``.

    :meth:`read` and :meth:`copy` need no workspace; the files come from the store. ``pending``,
    :meth:`recover` and :meth:`abandon` are about a restore of files that was interrupted.
    """

    def __init__(self, engine: Engine, writer: Writer, history: History, side: FileSide) -> None:
        self._engine = engine
        self._writer = writer
        self._history = history
        self._side = side

    @property
    def directory(self) -> OsPath | None:
        """The directory of this fork, or of its nearest ancestor; None without one.

        The files were there when it was made; they may have been moved since.
        """
        return self._history.directory()

    def read(self, point: PointLike, path: str) -> bytes:
        """Return the content of a file as it was at a point."""
        with self._engine.pin():
            tree = self._side.stored.tree_at(self._history.point(point))
            return self._side.stored.read(tree, path)

    def copy(
        self, point: PointLike, to: str | os.PathLike[str], only: Sequence[PathLike] | None = None
    ) -> list[Problem]:
        """Write the files of a point into a new or empty directory; nothing else is touched.

        ``only`` selects some of them. Returns the paths that could not be written.
        """
        parts, target = arguments.parts(only), OsPath(arguments.directory(to, "The directory"))
        with self._engine.pin():
            tree = self._side.stored.tree_at(self._history.point(point))
            return self._side.stored.copy(tree, target, self._side.stored.paths_in(tree, parts))

    def plan(self, point: PointLike, only: Sequence[PathLike] | None = None) -> Plan:
        """Return what ``Session.restore`` would do to the files, without doing it."""
        parts = arguments.parts(only)
        with self._engine.pin():
            target = self._side.targets.for_restore(self._history.point(point), parts)
            self._side.restorer.check(target)
            # No capture of another thread may replace the index while it is compared with.
            with self._writer.exclusive():
                return self._side.stored.plan(target.point, target.tree, target.paths, target.held)

    @property
    def pending(self) -> PendingRestore | None:
        """The restore of files that has started and not ended, in any directory.

        Opening the session with that directory finishes it, unless there is a ``recovery_error`` or
        it was opened with ``recover=False``.
        """
        # Not by the restorer, which takes longer to import than most commands take.
        pending = read_pending_restore(self._engine, self._writer.document())
        if pending is None:
            return None
        from mulligan.workspace.locks import is_restoring

        is_running = is_restoring(self._engine, OsPath(pending.directory))
        return msgspec.structs.replace(pending, is_running=is_running)

    @property
    def recovery_error(self) -> Exception | None:
        """Why an interrupted restore could not be completed; see ``pending``."""
        return self._side.captures.recovery_error

    def recover(self) -> Restored | None:
        """Complete a restore of files that another process started and did not finish."""
        return self._side.captures.recover()

    def abandon(self) -> PendingRestore | None:
        """End the pending restore as it is, and return it; ``Session.undo`` reverses it."""
        return self._side.restorer.abandon()
