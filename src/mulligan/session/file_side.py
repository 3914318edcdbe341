"""The parts that work with files, imported and created at their first use.

Importing them takes longer than all the work of a command that only looks at a session. The parts
hold only caches, so creating one late changes nothing.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from mulligan.session.write.capture_guard import CaptureGuard

if TYPE_CHECKING:
    from mulligan.engine import Engine
    from mulligan.model import SessionRecord
    from mulligan.session.comparer import Comparer
    from mulligan.session.environment import EnvironmentReader
    from mulligan.session.history import History
    from mulligan.session.write.checkpointer import Checkpointer
    from mulligan.session.write.restorer import Restorer
    from mulligan.session.write.stored_files import StoredFiles
    from mulligan.session.write.targets import Targets
    from mulligan.session.write.writer import Writer
    from mulligan.workspace.workspace import Workspace


class FileSide:
    """The parts of one session that capture, compare and restore files."""

    def __init__(
        self,
        engine: Engine,
        record: SessionRecord,
        environment: EnvironmentReader,
        workspace: Workspace | None,
        writer: Writer,
        history: History,
    ) -> None:
        self._engine = engine
        self._record = record
        self._environment = environment
        self.workspace = workspace
        self._writer = writer
        self._history = history
        self.captures = CaptureGuard(engine, record, writer, lambda: self.restorer, workspace)

    @cached_property
    def checkpointer(self) -> Checkpointer:
        """Takes checkpoints."""
        from mulligan.session.write.checkpointer import Checkpointer

        number = self._record.number
        known_seq = self._writer.known_seq
        return Checkpointer(self._engine, number, self._environment, self.workspace, known_seq)

    @cached_property
    def stored(self) -> StoredFiles:
        """Reads the files that checkpoints hold."""
        from mulligan.session.write.stored_files import StoredFiles

        return StoredFiles(self._engine, self._record, self.workspace)

    @cached_property
    def targets(self) -> Targets:
        """Finds the target of a restore."""
        from mulligan.session.write.targets import Targets

        return Targets(self._writer, self.stored, self.workspace, self._history.document_at)

    @cached_property
    def restorer(self) -> Restorer:
        """Restores state and files."""
        from mulligan.session.write.restorer import Restorer

        return Restorer(self._engine, self._record, self._writer, self.checkpointer, self.workspace)

    @cached_property
    def comparer(self) -> Comparer:
        """Compares points."""
        from mulligan.session.comparer import Comparer

        return Comparer(
            self._writer, self._history, self.targets, self.stored, lambda: self.restorer
        )
