"""Events of a session's journal: which ones, and what they look like."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mulligan.model import Point

if TYPE_CHECKING:
    from mulligan.model import Event
    from mulligan.session import Session
    from mulligan.timeline.points import PointLike


def event_view(event: Event) -> dict[str, Any]:
    """Return an event with its hash and the hash of the one before."""
    return {
        "session": event.session,
        "seq": event.seq,
        "timestamp": event.time,
        "actor": event.actor,
        "epoch": event.epoch,
        "kind": event.kind,
        "payload": event.payload,
        "prev": event.prev.hex(),
        "hash": event.hash.hex(),
    }


def select_events(
    session: Session,
    since: PointLike | None,
    last: Point,
    *,
    count: int | None = None,
    kinds: Sequence[str] = (),
) -> Iterable[Event]:
    """Return the events after ``since`` up to ``last``, oldest first.

    ``count`` keeps only the newest, ``kinds`` only those of a kind (``state.set``) or of a family
    of kinds (``state``).
    """
    begin = 0 if since is None else session.point(since).seq
    if count is not None and not kinds:
        # Numbers have no gaps, so the newest can be read without all those before them.
        begin = max(begin, last.seq - count)
    first = Point(last.session, begin) if begin else None
    found = of_kinds(session.events(first, last), kinds)
    return found if count is None else deque(found, maxlen=count)


def of_kinds(events: Iterable[Event], kinds: Sequence[str]) -> Iterator[Event]:
    """Yield the events of the named kinds; of all, if none is named."""
    for event in events:
        if not kinds or any(event.kind == k or event.kind.startswith(f"{k}.") for k in kinds):
            yield event
