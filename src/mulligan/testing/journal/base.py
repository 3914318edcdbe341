"""What the suites of a journal share: its fixtures, and ways to fill it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mulligan import codec
from mulligan.document.fold import small_event
from mulligan.journal.protocol import Journal, View
from mulligan.model import Digest, Event, ForkOrigin, Holder, NewEvent

START = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
LATER = START + timedelta(days=1)

HOLDER = Holder("machine", 4711, 1234)
"""A process that holds leases."""

NAMES = ["run", "run-1", "run-10", "run 1", "runner", "r", "RUN", "laufen/äöü", "走る", "run/1"]
"""Names that are easy to mix up."""


def note(content: Any) -> NewEvent:
    """Return a small new event."""
    return small_event("test.noted", {"content": content})


def address(number: int) -> Digest:
    """Return an arbitrary digest, the same for the same number."""
    return codec.digest(1, b"%d" % number)


def picture(view: View) -> dict[str, Any]:
    """Return everything in a journal, to compare it at two times."""
    shown: dict[str, Any] = {"objects": dict(view.locations()), "areas": view.area_lengths()}
    for record in view.sessions():
        number = record.number
        head = view.head(number)
        shown[record.name] = (
            record,
            head,
            list(view.events(number, 1, head.seq)),
            view.checkpoints(number, 1, head.seq),
            [view.keyframe(number, seq) for seq in range(1, head.seq + 1)],
            view.lease(number, "main"),
            view.keys(number),
        )
    shown["ids"] = view.checkpoints_by_id("")
    shown["keys"] = view.keys(0)
    return shown


class JournalBase:
    """The fixtures of a suite, and the steps that its tests share."""

    @pytest.fixture
    def journal(self) -> Journal:
        """Return an empty journal; every subclass provides its own."""
        raise NotImplementedError("give the suite a `journal` fixture")

    @pytest.fixture
    def reopen(self) -> Callable[[], Journal]:
        """Close the journal and open it again; only a persistent one can."""
        pytest.skip("this journal does not outlive its handle")

    def begin(self, journal: Journal, name: str = "run", origin: ForkOrigin | None = None) -> int:
        """Create a session and return its number."""
        with journal.write() as txn:
            return txn.create(name, START, origin).number

    def add(
        self,
        journal: Journal,
        number: int,
        *contents: Any,
        actor: str = "main",
        epoch: int = 0,
        time: datetime = START,
    ) -> list[Event]:
        """Append one event for each content in one transaction."""
        new_events = [note(content) for content in contents]
        with journal.write(number) as txn:
            return txn.append(number, new_events, actor=actor, epoch=epoch, time=time)

    def mark(
        self, journal: Journal, number: int, label: str | None = None, key: str | None = None
    ) -> tuple[int, str]:
        """Append an event, make it a checkpoint, and return (seq, id)."""
        with journal.write(number) as txn:
            new = note(["mark", number])
            [event] = txn.append(number, [new], actor="main", epoch=0, time=START)
            return event.seq, txn.index_checkpoint(number, event.seq, label, key)

    def contents(self, journal: Journal, number: int) -> list[Any]:
        """Return the contents of a session's events, from the first to the head."""
        with journal.read() as view:
            last = view.head(number).seq
            return [event.payload["content"] for event in view.events(number, 1, last)]
