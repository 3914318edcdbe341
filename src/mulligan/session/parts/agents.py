"""Agents: the record of each agent's process, and how an agent updates it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, get_args

from mulligan.document.compare import same
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import STATE, event_change
from mulligan.document.values import freeze
from mulligan.errors import InvalidTask
from mulligan.model import AgentState
from mulligan.session.arguments import optional_text, seconds
from mulligan.session.components import AGENTS

if TYPE_CHECKING:
    from mulligan.model import Lease
    from mulligan.session.runtime.heartbeat import HeartbeatWriter
    from mulligan.session.write.decisions import Changes
    from mulligan.session.write.writer import Writer

STATES: tuple[AgentState, ...] = get_args(AgentState)
"""What an agent can be doing."""

AT_REST: tuple[AgentState, ...] = ("suspended", "done", "failed")
"""The states in which the agent's process is not expected to run."""


class Agent:
    """One agent of a session: its record in the state, under ``agents/NAME``."""

    def __init__(self, writer: Writer, name: str) -> None:
        self._writer = writer
        self.name = name
        self.heart: HeartbeatWriter | None = None
        """The heartbeat that its supervisor reads, if it has one."""

    def get(self) -> dict[str, Any]:
        """Return the agent's record."""
        document = self._writer.document()
        found = document.find((*STATE, AGENTS, self.name))
        plain = {} if found is MISSING else document.plain(found)
        return plain if isinstance(plain, dict) else {}

    @property
    def lease(self) -> Lease | None:
        """The lease that this handle holds as the agent's only writer; None without one.

        Its ``epoch`` is a fencing token: pass it to a system outside that can refuse the writes of
        a process that was replaced.
        """
        return self._writer.lease

    @property
    def handover(self) -> str | None:
        """What the agent was told when it last started again with a clean context."""
        found = self.get().get("handover")
        return found if isinstance(found, str) else None

    def update(
        self,
        *,
        state: AgentState | None = None,
        prompt: str | None = None,
        working_on: str | None = None,
        last_action: str | None = None,
        **details: Any,
    ) -> None:
        """Update the agent's record; omitted fields stay, and unchanged values write nothing."""
        if state is not None and state not in STATES:
            raise InvalidTask(f"An agent's state is one of {', '.join(STATES)}, not {state!r}.")
        given = {
            "state": state,
            "current_prompt": prompt,
            "working_on": working_on,
            "last_action": last_action,
        }
        fields = {key: value for key, value in given.items() if value is not None}
        self.record("agent.updated", {**fields, **details})

    def expect(self, deadline: float | None, doing: str | None = None) -> None:
        """Announce to the supervisor that a step begins, and how many seconds it may take.

        None means the supervisor's default. It writes no event, and does nothing without a
        supervisor.
        """
        if deadline is not None:
            seconds(deadline, "A deadline")
        optional_text(doing, "What an agent does")
        if self.heart is not None:
            self.heart.expect(deadline, doing)

    @contextmanager
    def step(self, doing: str, deadline: float) -> Iterator[None]:
        """Give a long step its own deadline, for example a call to a model."""
        self.expect(seconds(deadline, "A deadline"), doing)
        try:
            yield
        finally:
            self.expect(None)

    def record(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Write an event of a kind that sets fields of the agent's record."""
        place = (AGENTS, self.name)
        frozen = {key: freeze(value, (*place, key)) for key, value in fields.items()}

        def decide(work: Changes) -> None:
            # Compared inside the decision, so that an update without changes writes no event.
            changes = [
                [[*place, key], value]
                for key, value in frozen.items()
                if not same(work.document.find((*STATE, *place, key)), value)
            ]
            if changes or kind != "agent.updated":
                work.add(event_change(kind, changes, agent=self.name))

        self._writer.write(decide)


def agent_names(document: Document) -> list[str]:
    """Return the agents that a document knows."""
    found = document.find((*STATE, AGENTS))
    return [] if found is MISSING else list(document.entries(document.resolved(found)))
