"""Marks: the verdict on a checkpoint, given by a person or a health command.

No restore touches a mark, so a rollback does not forget which checkpoints were good. A fork
inherits the marks that the checkpoints of its past have when it is created.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mulligan.decoding import ready
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import MARKS, Change, event_change
from mulligan.document.values import freeze
from mulligan.errors import InvalidMark
from mulligan.model import Verdict

if TYPE_CHECKING:
    from mulligan.journal.protocol import View

GOOD: Final = "good"
BAD: Final = "bad"
VERDICTS = (GOOD, BAD)
MARKED = "checkpoint.marked"


class Mark(msgspec.Struct, frozen=True):
    """A verdict, good or bad, with its author and reason."""

    verdict: Verdict
    by: str
    note: str | None = None


def mark_change(checkpoint: str, mark: Mark) -> Change:
    """Return the event that marks a checkpoint, replacing any earlier mark."""
    if mark.verdict not in VERDICTS:
        raise InvalidMark(f"A checkpoint is {' or '.join(VERDICTS)}, not {mark.verdict!r}.")
    value = freeze(msgspec.to_builtins(mark), MARKS)
    place = ["marks", checkpoint]
    return event_change(
        MARKED, control=[[place, value]], checkpoint=checkpoint, verdict=mark.verdict
    )


def read_marks(document: Document) -> dict[str, Mark]:
    """Return the marks in a document by checkpoint id."""
    found = document.find(MARKS)
    plain: dict[str, Any] = {} if found is MISSING else document.plain(found)
    return {checkpoint: msgspec.convert(mark, ready(Mark)) for checkpoint, mark in plain.items()}


def marked_before(
    view: View, number: int, seq: int, document: Document, verdict: str
) -> Iterator[tuple[int, str]]:
    """Yield (seq, id) of a timeline's checkpoints with that verdict, newest first."""
    marks = {name for name, mark in read_marks(document).items() if mark.verdict == verdict}
    # Stops when all marks are found: a timeline may have thousands of checkpoints.
    while marks and (found := view.checkpoint_before(number, seq)) is not None:
        seq = found[0] - 1
        if found[1] in marks:
            marks.remove(found[1])
            yield found
