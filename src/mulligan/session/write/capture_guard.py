"""Captures beside restores: no checkpoint ever holds a tree that is half restored.

From the capture to the commit of its checkpoint, the directory's lock is held shared; a restore
holds it exclusively. If the process of a restore died, the next capture finishes the restore first,
as opening the session does. If that fails, the checkpoint holds only the state; its files are those
from before the restore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from mulligan.document.history import document_at
from mulligan.errors import DamageError, DiskFull, RestoreBusy, RestorePending, StoreUnwritable
from mulligan.session.names import a
from mulligan.session.write.pending_restore import is_pending_in, read_pending_restore

if TYPE_CHECKING:  # they import all of workspace/; see ``Session``
    from mulligan.engine import Engine
    from mulligan.model import PendingRestore, Restored, SessionRecord
    from mulligan.session.write.restorer import Restorer
    from mulligan.session.write.writer import Writer
    from mulligan.workspace.locks import Marks
    from mulligan.workspace.workspace import Workspace

RECOVERY_ERRORS = (DiskFull, StoreUnwritable, DamageError, OSError)
"""Errors that prevent a restore from being finished, but not the use of the session."""


_NOTHING_PENDING = nullcontext(None)


class CaptureGuard:
    """Keeps the captures of one session's workspace apart from restores."""

    def __init__(
        self,
        engine: Engine,
        record: SessionRecord,
        writer: Writer,
        restorer: Callable[[], Restorer],
        workspace: Workspace | None,
    ) -> None:
        self._engine = engine
        self._record = record
        self._writer = writer
        self._restorer = restorer
        self._workspace = workspace
        self.recovered: Restored | None = None
        self.recovery_error: Exception | None = None

    def recover(self) -> Restored | None:
        """Complete a restore whose process died before it was finished."""
        self.recovered = self.recovery_error = None
        try:
            with self._engine.pin():
                if self._own() is not None:
                    self.recovered = self._restorer().finish()
        except Exception as error:
            self.recovery_error = error
            raise
        return self.recovered

    def settled(self) -> AbstractContextManager[RestorePending | None]:
        """Keep restores out; wait for a running one, and finish an interrupted one.

        Yields None, or the restore that is still half done: then no files may be captured.
        """
        return _NOTHING_PENDING if self._workspace is None else self._settled(self._workspace)

    @contextmanager
    def _settled(self, workspace: Workspace) -> Iterator[RestorePending | None]:
        from mulligan.workspace.locks import share_directory

        while True:
            # The shared lock is held until the caller has committed its capture. Otherwise a
            # restore could start in between, and the checkpoint would record files from before it.
            with share_directory(self._engine, workspace.root) as marks:
                pending = self._pending(workspace, marks)
                if pending is None or not self._is_ours_to_finish():
                    yield pending
                    return
            # Without the shared lock, because finishing takes the exclusive one. Then check again:
            # another restore may have started before the shared lock was taken again.
            self._try_to_finish()

    def _is_ours_to_finish(self) -> bool:
        """Whether this handle can finish what is pending, and has not failed to do so before.

        Each attempt takes a checkpoint, so it is not repeated at every routine checkpoint.
        """
        return self.recovery_error is None and self._own() is not None

    def _try_to_finish(self) -> None:
        try:
            self.recover()
        except RestoreBusy:
            self.recovery_error = None  # another process finishes it; the shared lock waits for it
        except RECOVERY_ERRORS:
            pass  # `recover` keeps it as `recovery_error`, and the caller captures no files

    def _pending(self, workspace: Workspace, marks: Marks) -> RestorePending | None:
        """Return the restore that is pending in the directory, of any session."""
        own = self._own()
        if own is not None:
            return _error(own, self._record)
        marked = marks.read()
        for number in sorted(marked):
            found = self._pending_of(number, workspace)
            if found is not None:
                return _error(*found)
        if not self._engine.read_only:
            # A process that died after its commit left it. The shared lock keeps restores out, so
            # no mark is added meanwhile.
            marks.remove(*marked)
        return None

    def _own(self) -> PendingRestore | None:
        """Return the restore of this session that is pending in the workspace."""
        if self._workspace is None:
            return None
        pending = read_pending_restore(self._engine, self._writer.document())
        if pending is None or not is_pending_in(pending, self._workspace.root):
            return None
        return pending

    def _pending_of(
        self, number: int, workspace: Workspace
    ) -> tuple[PendingRestore, SessionRecord] | None:
        with self._engine.read() as view:
            record = next((made for made in view.sessions() if made.number == number), None)
            if record is None or record.deleted is not None:
                return None
            document = document_at(view, number, view.head(number).seq, self._engine.load)
        pending = read_pending_restore(self._engine, document)
        if pending is None or not is_pending_in(pending, workspace.root):
            return None
        return pending, record


def note_without_files(note: str | None, why: RestorePending | str) -> str:
    """Return the note of a checkpoint that holds no files: a restore is pending, or no room."""
    said = f"without files: {why}"
    return said if note is None else f"{note} ({said})"


def _error(pending: PendingRestore, record: SessionRecord) -> RestorePending:
    where = f"#{pending.point.seq} of {pending.point.session}"
    return RestorePending(
        f"{a(pending.mode)} to {where} is half done in {pending.directory}, session {record.name}"
    )
