"""Losses: what checkpoints no longer hold since files of the store were damaged.

A repair records them, so that ``status`` and restores can say what is missing. No restore touches
this, as with marks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from mulligan.decoding import ready
from mulligan.document.document import MISSING, Document, LoadBytes
from mulligan.document.fold import CONTROL, LOST, Change, event_change
from mulligan.document.history import document_at
from mulligan.document.values import freeze
from mulligan.errors import MissingObject
from mulligan.journal.protocol import View
from mulligan.model import DIGEST_SIZE, Digest, Path
from mulligan.timeline.checkpoints import LOST as LOST_VALUE

REPAIRED = "upkeep.repaired"

MAX_PATHS = 200
"""How many paths of a checkpoint are listed; the rest is counted."""

WHOLE = "."
"""Stands for all files, or for the whole state."""


class Loss(msgspec.Struct, frozen=True):
    """What a checkpoint lost: paths of files and of the state, and how many there are.

    ``events`` are the first and the last of the events that its state lacks. ``record`` names parts
    of the checkpoint's own record. ``nearest`` is the id of the nearest intact checkpoint.
    """

    files: list[str] = []
    state: list[str] = []
    events: list[int] | None = None
    record: list[str] = []
    file_count: int = 0
    state_count: int = 0
    nearest: str | None = None

    @property
    def parts(self) -> list[str]:
        """Return what is missing, each in a few words."""
        found: list[str] = []
        if self.file_count:
            is_all = WHOLE in self.files
            found.append("all files" if is_all else _counted(self.file_count, "file", self.files))
        if WHOLE in self.state:
            found.append("the state")
        elif self.state_count:
            found.append(_counted(self.state_count, "path of the state", self.state))
        if self.events is not None:
            first, last = self.events
            events = f"event #{first}" if first == last else f"events #{first} to #{last}"
            found.append(f"the changes of {events}")
        return found + [f"its {name}" for name in self.record]


def _counted(count: int, noun: str, paths: list[str]) -> str:
    named = ", ".join(paths[:3])
    more = f" and {count - 3} more" if count > 3 else ""
    return f"{noun} {named}" if count == 1 else f"{count} {_plural(noun)} ({named}{more})"


def _plural(noun: str) -> str:
    first, *rest = noun.split(" ")
    return " ".join([f"{first}s", *rest])


LOST_OBJECTS: Path = (*CONTROL, "lost_objects")
"""The digests of the objects that are gone, in a row."""


def losses_change(
    losses: dict[int, Loss], before: dict[int, Loss], objects: Iterable[Digest]
) -> Change:
    """Return the event that records losses, by the seqs of the checkpoints, in place of others."""
    control: list[list[Any]] = [
        [[LOST[-1], str(seq)], freeze(msgspec.to_builtins(loss), LOST)]
        for seq, loss in losses.items()
        if before.get(seq) != loss
    ]
    control += [[[LOST[-1], str(seq)]] for seq in before if seq not in losses]
    control.append([[LOST_OBJECTS[-1]], b"".join(sorted(objects))])
    return event_change(REPAIRED, control=control, damaged=len(losses))


def read_losses(document: Document) -> dict[int, Loss]:
    """Return what checkpoints of a timeline lost, by their seqs."""
    found = document.find(LOST)
    plain: dict[str, Any] = {} if found is MISSING else document.plain(found)
    # Keys are text, in the order of text: #11 comes before #5 there.
    found_at = sorted((int(seq), loss) for seq, loss in plain.items())
    return {seq: msgspec.convert(loss, ready(Loss)) for seq, loss in found_at}


def read_lost_objects(document: Document) -> set[Digest]:
    """Return the digests of the objects that a session lost."""
    found = document.find(LOST_OBJECTS)
    data = b"" if found is MISSING else document.plain(found)
    return {Digest(data[at : at + DIGEST_SIZE]) for at in range(0, len(data), DIGEST_SIZE)}


def plain_with_losses(value: Any, plain: Callable[[Any], Any]) -> Any:
    """Return a frozen value with ``(lost)`` in the place of each part whose object is gone."""
    if isinstance(value, dict):
        return {key: plain_with_losses(item, plain) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_with_losses(item, plain) for item in value]
    try:
        return plain(value)
    except MissingObject:
        return LOST_VALUE


def lost_objects(view: View, load: LoadBytes) -> set[Digest]:
    """Return the digests of all objects that a repair recorded as lost."""
    found: set[Digest] = set()
    for record in view.sessions():
        head = view.head(record.number).seq
        found |= read_lost_objects(document_at(view, record.number, head, load))
    return found
