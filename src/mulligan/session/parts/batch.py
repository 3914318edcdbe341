"""What a program has of its batch: a checkpoint at its end, and where it is on the timeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.errors import StateError
from mulligan.session.write.checkpoint_request import checked_request

if TYPE_CHECKING:
    from mulligan.model import Checkpoint, CheckpointKind
    from mulligan.session.write.batch import OpenBatch


class Batch:
    """The changes of a ``with session.batch() as batch`` block: one transaction at its end.

    After the block, ``seq`` and ``result`` say what was written. A batch inside of another one
    becomes part of it, and both end with the outer one.
    """

    def __init__(self, batch: OpenBatch) -> None:
        self._batch = batch

    def checkpoint(
        self,
        kind: CheckpointKind | str = "manual",
        note: str | None = None,
        label: str | None = None,
        *,
        key: str | None = None,
        data: Mapping[str, Any] | None = None,
        if_files_changed: bool = False,
    ) -> None:
        """Take a checkpoint at the end of the batch, in the same transaction as its changes.

        It holds all changes of the batch, wherever in the block this is called, and the files as
        they are at the end of the block. The arguments are those of ``Session.checkpoint``. A batch
        takes one checkpoint: a second call raises ``StateError``. With ``if_files_changed``, it
        takes none if the latest checkpoint holds the same files; the changes are written anyway.
        """
        request = checked_request(kind, note, label, key, data)
        request = msgspec.structs.replace(request, if_files_changed=if_files_changed)
        if self._batch.has_ended:
            raise StateError("This batch has ended.", hint="Nothing was written. Open another one.")
        if self._batch.request is not None:
            raise StateError(
                "This batch takes a checkpoint already.",
                hint="One transaction has one checkpoint. Take the other in another batch.",
            )
        self._batch.request = request

    @property
    def seq(self) -> int:
        """The seq of the batch's last event; only after the block, and if it wrote something."""
        if self._batch.seq is None:
            what = "wrote nothing" if self._batch.has_ended else "has not ended"
            raise StateError(
                f"This batch {what}, so it has no seq.",
                hint="Read it after the block of a batch that writes.",
            )
        return self._batch.seq

    @property
    def result(self) -> Checkpoint | None:
        """The checkpoint that was taken at the end of the block; None if none was."""
        return self._batch.checkpoint
