"""Events of a session's journal: which ones, and what they look like."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mulligan.model import Point

if TYPE_CHECKING:
    from mulligan.model import Event, Fold
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
        "purge": event.purge,
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
    begin = 0 if since is None else session.internal.place(since).seq
    if count is not None and not kinds:
        begin = max(begin, _before_newest(session, last.seq, count))
    first = Point(last.session, begin) if begin else None
    found = of_kinds(session.events(first, last), kinds)
    return found if count is None else deque(found, maxlen=count)


def fold_view(session: Session, fold: Fold) -> dict[str, Any]:
    """Return events that were folded away in the shape of one event, the last of them."""
    span = {"first": fold.first, "last": fold.last, "started": fold.started, "ended": fold.ended}
    return {
        "session": session.name,
        "seq": fold.last,
        "timestamp": fold.ended,
        "actor": "",
        "epoch": 0,
        "kind": "events.folded",
        "payload": span,
        "prev": None,
        "hash": fold.hash.hex(),
        "purge": None,
    }


def with_folds(
    session: Session, since: PointLike | None, last: Point, events: Iterable[Event]
) -> Iterator[Event | Fold]:
    """Yield events, with the folds between them or after ``since`` in their places."""
    begin = 0 if since is None else session.internal.place(since).seq
    folds = deque(session.internal.folds(begin + 1, last.seq))
    for event in events:
        while folds and folds[0].last < event.seq:
            yield folds.popleft()
        yield event
    yield from folds


def _before_newest(session: Session, last: int, count: int) -> int:
    """Return the seq after which the newest events start: only folds make gaps in the numbers."""
    for fold in reversed(session.internal.folds(1, last)):
        if last - fold.last >= count:
            break
        count -= max(0, last - fold.last)
        last = fold.first - 1
    return max(0, last - count)


def of_kinds(events: Iterable[Event], kinds: Sequence[str]) -> Iterator[Event]:
    """Yield the events of the named kinds; of all, if none is named."""
    for event in events:
        if not kinds or any(event.kind == k or event.kind.startswith(f"{k}.") for k in kinds):
            yield event
