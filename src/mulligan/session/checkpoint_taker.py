"""Taking a checkpoint: files first, then one transaction with everything that belongs to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mulligan.session.write.capture_guard import note_without_files

if TYPE_CHECKING:
    from mulligan.engine import Engine
    from mulligan.model import Checkpoint
    from mulligan.session.file_side import FileSide
    from mulligan.session.history import History
    from mulligan.session.write.batch import OpenBatch
    from mulligan.session.write.checkpoint_request import CheckpointRequest
    from mulligan.session.write.decisions import Decision
    from mulligan.session.write.writer import Work, Writer


class CheckpointTaker:
    """Takes the checkpoints of a session, alone or together with the changes of a batch."""

    def __init__(
        self, engine: Engine, writer: Writer, file_side: FileSide, history: History
    ) -> None:
        self._engine = engine
        self._writer = writer
        self._file_side = file_side
        self._history = history

    def take(self, request: CheckpointRequest, changes: Decision[None] | None = None) -> Checkpoint:
        """Take a checkpoint; with ``changes``, of the state after them, in one transaction."""
        started = self._engine.clock.monotonic()
        # Objects first, in a bundle of this call alone: they are durable before the journal's
        # transaction names them, and are left unused if that fails.
        bundle = self._engine.bundle()
        # The lock is held until the commit: otherwise a restore could come in between, and files
        # from before it would be recorded after it.
        with self._writer.alone(), self._file_side.captures.settled() as pending:
            taker = self._file_side.checkpointer
            with taker.capture(bundle, started, files=pending is None, limited=True) as parts:
                why = pending or (parts.refused and parts.refused.refused)
                noted = note_without_files(request.note, why) if why else request.note
                request = msgspec.structs.replace(request, note=noted)

                def decide(work: Work) -> int:
                    if changes is not None:
                        changes(work)
                    return taker.add(work, request, parts)

                seq = self._writer.commit(decide, bundle)
            # Under the lock: another thread's transaction would replace the event that is kept.
            taken = self._history.checkpoint_at(seq)
        if self._engine.upkeep is not None:
            self._engine.upkeep.work_done()
        return taken

    def commit(self, batch: OpenBatch) -> None:
        """Write what a batch has collected, and its checkpoint, as one transaction."""
        if batch.request is not None:
            batch.checkpoint = self.take(batch.request, batch.decide)
            batch.seq = batch.checkpoint.seq
        elif batch.decisions:

            def decide(work: Work) -> int:
                batch.decide(work)
                return work.seq

            batch.seq = self._writer.commit(decide)
