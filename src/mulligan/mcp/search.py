"""Texts and paths in the history of a session, newest first, with a bound on the work."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from mulligan.errors import PathNotFound, PointError
from mulligan.mcp.outputs import Match, SearchOutput

if TYPE_CHECKING:
    from mulligan.model import Checkpoint, Event
    from mulligan.session import Session

MAX_EVENTS = 20_000
MAX_CHECKPOINTS = 200
"""How many pairs of checkpoints are compared for a path."""

_CHUNK = 500
_AROUND = 80
"""How many characters of a text are shown before and after a match."""


def search_text(session: Session, text: str, limit: int) -> SearchOutput:
    """Return the newest events that have a text in them, whatever its case."""
    wanted, found, head = text.casefold(), [], session.head.seq
    oldest = max(0, head - MAX_EVENTS)
    for event in _newest_first(session, head, oldest):
        excerpt = excerpt_of(event, wanted)
        if excerpt is not None:
            found.append((event, excerpt))
        if len(found) == limit:
            oldest = event.seq - 1
            break
    holders = [(one.seq, one.id) for one in session.checkpoints()] if found else []
    matches = [_match(event, excerpt, holders) for event, excerpt in found]
    return SearchOutput(session.name, matches, complete=oldest == 0)


def search_path(session: Session, path: str, limit: int) -> SearchOutput:
    """Return the newest checkpoints at which a file or directory differs from the one before."""
    held = [one for one in session.checkpoints() if one.workspace is not None][::-1]
    matches: list[Match] = []
    compared = 0
    for taken, earlier in zip_longest(held, held[1:]):
        if earlier is not None and taken.workspace == earlier.workspace:
            continue
        if compared == MAX_CHECKPOINTS or len(matches) == limit:
            return SearchOutput(session.name, matches, complete=False)
        compared += 1
        said = _changed(session, earlier, taken, path)
        if said:
            time = taken.time.isoformat()
            matches.append(Match(taken.seq, time, taken.actor, "checkpoint", said, taken.id))
    return SearchOutput(session.name, matches, complete=True)


def excerpt_of(event: Event, wanted: str) -> str | None:
    """Return the part of an event around a text, in one line; None if it does not have it."""
    for text in _texts(event.payload):
        at = text.casefold().find(wanted)
        if at >= 0:
            first = max(0, at - _AROUND)
            return " ".join(text[first : at + len(wanted) + _AROUND].split())
    return None


def _texts(value: Any) -> Iterator[str]:
    """Yield the strings of a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _newest_first(session: Session, head: int, oldest: int) -> Iterator[Event]:
    """Yield events from the head on back; a chunk at a time, since they are read forwards."""
    last = head
    while last > oldest:
        first = max(oldest, last - _CHUNK)
        yield from reversed(list(session.events(first or None, last)))
        last = first


def _match(event: Event, excerpt: str, holders: list[tuple[int, str]]) -> Match:
    at = bisect_left(holders, (event.seq, ""))
    holder = holders[at][1] if at < len(holders) else None
    time = event.time.isoformat()
    return Match(event.seq, time, event.actor, event.kind, excerpt, holder)


def _changed(session: Session, before: Checkpoint | None, after: Checkpoint, path: str) -> str:
    """Return how a path differs between two checkpoints; nothing if it does not."""
    part = f"workspace/{path.strip('/')}"
    try:
        if before is None:
            session.internal.plan_copy(after, [part])
            return f"{path}: in the first checkpoint with files"
        found = session.diff(before, after, [part]).files
    except (PathNotFound, PointError):
        return ""  # neither has it, or retention removed the files
    said = ", ".join(f"{change.change} {change.path}" for change in found[:5])
    return said + (f" and {len(found) - 5} more" if len(found) > 5 else "")
