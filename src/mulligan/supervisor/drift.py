"""The supervisor's watch over the drift of its agents, and how it carries out responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mulligan.drift.journal import only_agent
from mulligan.drift.ladder import RESTARTS, ROLLBACK, Response
from mulligan.errors import InvalidSignal, MulliganError, StaleLease, StoreGone
from mulligan.model import Event
from mulligan.session import Session
from mulligan.session.runtime.drift_watch import (
    DriftWatch,
    isolated,
    release,
    respond_all,
    settings_of,
)
from mulligan.session.runtime.refresh import hand_over, roll_back
from mulligan.supervisor.checkpoint_thread import CheckpointThread
from mulligan.supervisor.records import Records
from mulligan.supervisor.stimuli import Drifted, Isolate, Prepare
from mulligan.supervisor.team_events import TeamEvents

Say = Callable[[str], None]


class TeamDrift:
    """Watches all agents of a team through the supervisor's handle."""

    def __init__(
        self, session: Session, records: Records, thread: CheckpointThread, say: Say
    ) -> None:
        self._session = session
        self._records = records
        self._thread = thread
        self._say = say
        self._watches: dict[str, DriftWatch] = {}
        self._responses: dict[str, Response] = {}

    def begin(self, names: Iterable[str], *, afresh: bool) -> list[str]:
        """Return the agents that are isolated; ``afresh`` releases them: a person started them."""
        found = isolated(self._session)
        for name in found if afresh else ():
            release(self._session, name, "started again")
        kept = {} if afresh else found
        for name, isolation in kept.items():
            self._say(f"{name} is isolated: {isolation.why}; {_release(name)}")
        self._names = [name for name in names if name not in kept]
        return list(kept)

    def watch(self) -> None:
        """Read the settings and the state of every watch; the team is written down by now."""
        settings = settings_of(self._session)
        if settings.enabled:
            self._watches = {
                name: DriftWatch(self._session, name, settings) for name in self._names
            }

    def look(self, events: TeamEvents) -> list[Drifted]:
        """Read what the agents did since the last look, and return what is to be done about it."""
        since = min((watch.record.seq for watch in self._watches.values()), default=None)
        last = since or 0
        try:
            # Read once for all agents; with 20 of them, each event concerns one in most cases.
            for event in events.look(since):
                self._take(event)
                last = event.seq
        except InvalidSignal as error:
            # A signal of another package must not end the team: it goes on without a watch.
            self._say(f"drift is no longer watched: {error}")
            self._records.not_prepared(None, "watch", str(error))
            self._watches = {}
        for watch in self._watches.values():
            watch.skip_to(last)
        responses = respond_all(self._session, self._watches.values())
        return [
            self._drifted(name, response)
            for name, found in zip(self._watches, responses, strict=True)
            for response in found
        ]

    def _take(self, event: Event) -> None:
        """Pass an event on to the watches that it concerns."""
        agent = only_agent(event)
        if agent is None:
            for watch in self._watches.values():
                watch.take(event)
        elif (only := self._watches.get(agent)) is not None:
            only.take(event)

    def _drifted(self, name: str, response: Response) -> Drifted:
        self._say(f"{name} drifts ({response.rung}): {response.why}")
        if response.rung in RESTARTS:
            self._responses[name] = response
        return Drifted(name, response.rung, response.why)

    async def prepare(self, action: Prepare) -> str | None:
        """Take an agent back if that is the response, clean its context; return what it is told."""
        name, response = action.agent, self._responses.pop(action.agent, None)
        self._records.answered_restart(name)
        if response is None:
            return None
        try:
            if response.rung == ROLLBACK:
                # In the thread of the checkpoints: it has the handle with the files.
                await self._thread.run(lambda session: roll_back(session, name, response))
            return hand_over(self._session, name, response)
        except (StaleLease, StoreGone):
            raise
        except (MulliganError, OSError) as error:
            # It starts again anyway: a process that drifts must not go on.
            self._say(f"{name}: the {response.rung} failed: {error}")
            self._records.not_prepared(name, response.rung, str(error))
            return None

    def isolate(self, action: Isolate) -> None:
        """Write down that an agent waits for a person, and say so."""
        self._records.answered_restart(action.agent)
        self._records.isolated(action.agent, action.why)
        self._watches.pop(action.agent, None)
        self._say(f"{action.agent} is isolated: {action.why}; {_release(action.agent)}")


def _release(name: str) -> str:
    return f"`mulligan drift release {name}` and `mulligan resume` let it go on"
