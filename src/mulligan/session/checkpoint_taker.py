"""Taking a checkpoint: files first, then one transaction with everything that belongs to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from mulligan.model import Checkpoint
from mulligan.session.write.capture_guard import note_without_files

if TYPE_CHECKING:
    from mulligan.engine import Engine, PendingObjects
    from mulligan.errors import RestorePending
    from mulligan.session.file_side import FileSide
    from mulligan.session.history import History
    from mulligan.session.write.batch import OpenBatch
    from mulligan.session.write.checkpoint_request import CheckpointRequest
    from mulligan.session.write.checkpointer import CheckpointParts
    from mulligan.session.write.writer import Work, Writer

R = TypeVar("R")
T = TypeVar("T")


class CheckpointTaker:
    """Takes the checkpoints of a session, alone or together with the changes of a batch."""

    def __init__(
        self, engine: Engine, writer: Writer, file_side: FileSide, history: History
    ) -> None:
        self._engine = engine
        self._writer = writer
        self._file_side = file_side
        self._history = history

    def take(
        self,
        request: CheckpointRequest,
        changes: Callable[[Work], R] | None = None,
        *,
        if_changed: bool = False,
    ) -> tuple[Checkpoint, R | None]:
        """Take a checkpoint; with ``changes``, of the state after them, in one transaction.

        Return it, and what the changes returned. With ``if_changed``, the latest one is returned if
        it holds the same state and files. If the request is only for changed files, it is returned
        after the changes are written.
        """
        return self._take(request, changes, self._history.checkpoint_at, if_changed=if_changed)

    def take_after(self, changes: Callable[[Work], object], request: CheckpointRequest) -> int:
        """Take a checkpoint of the state after changes, in one transaction; return its seq."""
        taken, _ = self._take(request, changes, lambda seq: seq)
        return taken.seq if isinstance(taken, Checkpoint) else taken

    def _take(
        self,
        request: CheckpointRequest,
        changes: Callable[[Work], R] | None,
        read: Callable[[int], T],
        *,
        if_changed: bool = False,
    ) -> tuple[T | Checkpoint, R | None]:
        """Take a checkpoint, and return it as ``read`` reads it, and what the changes returned."""
        started = self._engine.clock.monotonic()
        # Objects first, in a bundle of this call alone: they are durable before the journal's
        # transaction names them, and are left unused if that fails.
        bundle = self._engine.bundle()
        # The lock is held until the commit: otherwise a restore could come in between, and files
        # from before it would be recorded after it.
        with self._writer.alone(), self._file_side.captures.settled() as pending:
            taker, files = self._file_side.checkpointer, pending is None
            latest = self._latest(request, if_changed=if_changed)
            with taker.capture_changed(bundle, started, latest, files=files) as found:
                if isinstance(found, Checkpoint):
                    return found, self._writer.commit(changes, bundle) if changes else None
                noted = _noted(request, found, pending)
                seq, done = self._commit(noted, changes, found, bundle)
            # Under the lock: another thread's transaction would replace the event that is kept.
            taken = read(seq)
        if self._engine.upkeep is not None:
            self._engine.upkeep.work_done()
        return taken, done

    def _latest(self, request: CheckpointRequest, *, if_changed: bool) -> Checkpoint | None:
        """Return the checkpoint in whose place none is taken if it holds the same files."""
        if request.if_files_changed:
            return self._history.latest()
        return self._history.latest_of_state() if if_changed else None

    def _commit(
        self,
        request: CheckpointRequest,
        changes: Callable[[Work], R] | None,
        parts: CheckpointParts,
        bundle: PendingObjects,
    ) -> tuple[int, R | None]:
        def decide(work: Work) -> tuple[int, R | None]:
            done = changes(work) if changes else None
            return self._file_side.checkpointer.add(work, request, parts), done

        return self._writer.commit(decide, bundle)

    def commit(self, batch: OpenBatch) -> None:
        """Write what a batch has collected, and its checkpoint, as one transaction."""
        if batch.request is not None:
            self._commit_with_checkpoint(batch, batch.request)
        elif batch.decisions:
            batch.seq = self._writer.commit(_decide_of(batch))

    def _commit_with_checkpoint(self, batch: OpenBatch, request: CheckpointRequest) -> None:
        taken, done = self.take(request, _decide_of(batch))
        written = done or 0
        # An earlier one was returned: the files are those that it holds.
        batch.checkpoint = taken if taken.seq > written else None
        batch.seq = max(taken.seq, written) if batch.checkpoint or batch.decisions else None


def _decide_of(batch: OpenBatch) -> Callable[[Work], int]:
    """Return the decision of a batch: its changes; it returns the seq of the last one."""

    def decide(work: Work) -> int:
        batch.decide(work)
        return work.seq

    return decide


def _noted(
    request: CheckpointRequest, parts: CheckpointParts, pending: RestorePending | None
) -> CheckpointRequest:
    """Return the request with the reason in its note if the checkpoint will hold no files."""
    why = pending or (parts.refused and parts.refused.refused)
    if not why:
        return request
    return msgspec.structs.replace(request, note=note_without_files(request.note, why))
