"""Captures beside restores: no checkpoint ever holds a tree that is half restored.

A capture and the commit of its checkpoint share the directory's lock, which a restore has to
itself. When the process of a restore died, the next capture finishes it first, as opening the
session does. Where that cannot be done, the checkpoint holds the state and no files: those that
count for it are the ones from before the restore.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mulligan.document.history import document_at
from mulligan.engine import Engine
from mulligan.errors import DamageError, DiskFull, RestoreBusy, RestorePending, StoreUnwritable
from mulligan.model import PendingRestore, Restored, SessionRecord
from mulligan.session.names import a
from mulligan.session.write.pending_restore import is_pending_in, read_pending_restore
from mulligan.session.write.restorer import Restorer
from mulligan.workspace.locks import Marks, share_directory
from mulligan.workspace.workspace import Workspace

RECOVERY_ERRORS = (DiskFull, StoreUnwritable, DamageError, OSError)
"""What keeps a restore from being finished, and yet no session from being used."""


class CaptureGuard:
    """Keeps the captures of one session's workspace apart from restores."""

    def __init__(
        self,
        engine: Engine,
        record: SessionRecord,
        restorer: Restorer,
        workspace: Workspace | None,
    ) -> None:
        self._engine = engine
        self._record = record
        self._restorer = restorer
        self._workspace = workspace
        self.recovered: Restored | None = None
        self.recovery_error: Exception | None = None

    def recover(self) -> Restored | None:
        """Complete a restore that another process began and did not live to finish."""
        self.recovered = self.recovery_error = None
        try:
            self.recovered = self._restorer.finish()
        except Exception as error:
            self.recovery_error = error
            raise
        return self.recovered

    @contextmanager
    def settled(self) -> Iterator[RestorePending | None]:
        """Keep restores out; waits while there is one, and finishes one that was interrupted.

        Yields None, or which restore is half done all the same: then nothing is to be captured.
        """
        if self._workspace is None:
            yield None
            return
        while True:
            # The shared lock is held until the caller has committed its capture: a restore that
            # started in between would make the checkpoint one of files from before it.
            with share_directory(self._engine, self._workspace.root) as marks:
                pending = self._pending(self._workspace, marks)
                if pending is None or not self._is_ours_to_finish(self._workspace):
                    yield pending
                    return
            # Without the shared lock: finishing takes the exclusive one. Then look again, since
            # another restore may have started before the shared lock is taken back.
            self._try_to_finish()

    def _is_ours_to_finish(self, workspace: Workspace) -> bool:
        """Whether this handle can finish what is pending, and has not failed to do so before.

        Each try takes a checkpoint: one for every routine checkpoint would be too many.
        """
        return self.recovery_error is None and self._restorer.pending_in(workspace) is not None

    def _try_to_finish(self) -> None:
        try:
            self.recover()
        except RestoreBusy:
            self.recovery_error = None  # another process finishes it; the shared lock waits for it
        except RECOVERY_ERRORS:
            pass  # `recover` keeps it as `recovery_error`, and the caller captures no files

    def _pending(self, workspace: Workspace, marks: Marks) -> RestorePending | None:
        """Return the restore that is pending in the directory, of any session."""
        own = self._restorer.pending_in(workspace)
        if own is not None:
            return _error(own, self._record)
        marked = marks.read()
        for number in sorted(marked):
            found = self._pending_of(number, workspace)
            if found is not None:
                return _error(*found)
        if not self._engine.read_only:
            # Left by a process that died after its commit. The shared lock keeps restores out, so
            # no mark is added meanwhile.
            marks.remove(*marked)
        return None

    def _pending_of(
        self, number: int, workspace: Workspace
    ) -> tuple[PendingRestore, SessionRecord] | None:
        with self._engine.read() as view:
            record = next((made for made in view.sessions() if made.number == number), None)
            if record is None:
                return None
            document = document_at(view, number, view.head(number).seq, self._engine.load)
        pending = read_pending_restore(self._engine, document)
        if pending is None or not is_pending_in(pending, workspace.root):
            return None
        return pending, record


def note_without_files(note: str | None, pending: RestorePending) -> str:
    """Return the note of a checkpoint that holds no files because of a pending restore."""
    said = f"without files: {pending}"
    return said if note is None else f"{note} ({said})"


def _error(pending: PendingRestore, record: SessionRecord) -> RestorePending:
    where = f"#{pending.point.seq} of {pending.point.session}"
    return RestorePending(
        f"{a(pending.mode)} to {where} is half done in {pending.directory}, session {record.name}"
    )
