"""The events of a team since the supervisor's last look, read once for all who want to know.

The supervisor learns of most requests by a signal. What it must notice without one is in the
events: so it need not bring its document up to date at every look, which takes longer than to
read them.
"""

from __future__ import annotations

from collections.abc import Iterator

from mulligan.document.fold import RESTORED
from mulligan.model import Event
from mulligan.session import Session
from mulligan.session.components import AGENTS


class TeamEvents:
    """Reads new events, and says what they may have changed of what the supervisor relies on.

    ``may_ask``: there may be another request to the team. ``may_revert``: what the state says of
    running agents may no longer be so. Both are about the events of the last look.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._seq = 0
        self.may_ask = self.may_revert = True

    def look(self, since: int | None) -> Iterator[Event]:
        """Yield the events after ``since``, or after the last look if that is earlier."""
        # Until all were read, and for what happened before the first look, anything may be so.
        self.may_ask = self.may_revert = True
        asks = reverts = not self._seq
        if not self._seq and since is None:
            self._seq = self._session.head.seq
            return
        start = last = min([seq for seq in (since, self._seq) if seq], default=0)
        count = 0
        for event in self._session.events(since=start or None):
            if event.seq > self._seq:
                asks = asks or "control" in (event.payload or ())
                reverts = reverts or _reverts(event)
            count, last = count + 1, event.seq
            yield event
        if count == last - start:  # none was folded away
            self.may_ask, self.may_revert = asks, reverts
        self._seq = max(self._seq, last)


def _reverts(event: Event) -> bool:
    """Whether an event may bring an earlier record of an agent back."""
    if event.kind == RESTORED:
        return True
    if not event.kind.startswith("state."):
        return False
    path = event.payload.get("path")
    return not path or path[0] == AGENTS
