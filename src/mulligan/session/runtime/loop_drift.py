"""What an agent's own loop does about drift, between two cycles.

Under a supervisor it does what that asks for; without one, it watches and responds itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from mulligan.drift.ladder import ISOLATE, NOTE, RESTARTS, ROLLBACK, Response
from mulligan.errors import AgentIsolated
from mulligan.session.runtime.drift_watch import (
    REFRESH_REQUESTS,
    DriftWatch,
    read_record,
    settings_of,
)
from mulligan.session.runtime.refresh import hand_over, roll_back

if TYPE_CHECKING:
    from mulligan.session.session import Session


class LoopDrift:
    """The drift of one agent whose process this is."""

    def __init__(
        self,
        session: Session,
        checkpoint: Callable[[str, str], None],
        restart: Callable[[], NoReturn],
    ) -> None:
        self._session = session
        self._checkpoint = checkpoint
        self._restart = restart
        self._watch: DriftWatch | None = None

    def refuse_isolated(self) -> None:
        """Raise ``AgentIsolated`` if a person has to decide first whether the agent goes on."""
        name = self._session.actor
        if (found := read_record(self._session, name).isolated) is not None:
            raise AgentIsolated(f"The agent {name!r} is isolated: {found.why}.")

    def watch(self) -> None:
        """Watch in this process, if the settings say so."""
        settings = settings_of(self._session)
        if settings.enabled:
            self._watch = DriftWatch(self._session, self._session.actor, settings)

    def respond(self) -> bool:
        """Carry out what drift calls for; return False when the loop has to end."""
        session = self._session
        if session.internal.is_supervised and session.internal.control(
            (REFRESH_REQUESTS, session.actor)
        ):
            # The supervisor prepares the new process once this one is gone.
            self._restart()
        responses = self._watch.look() if self._watch is not None else []
        return all(self._carry_out(response) for response in responses)

    def _carry_out(self, response: Response) -> bool:
        if response.rung == NOTE:
            return True
        self._checkpoint("recovery", f"drift, {response.rung}: {response.why}"[:500])
        if response.rung == ISOLATE:
            said = f"isolated: {response.why}"[:500]
            self._session.agent.update(state="suspended", last_action=said)
            return False
        if response.rung in RESTARTS:
            if response.rung == ROLLBACK:
                roll_back(self._session, self._session.actor, response)
            hand_over(self._session, self._session.actor, response)
            self._restart()
        return True
