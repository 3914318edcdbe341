"""What drift there was in a session up to a point, found by reading its events again.

Nothing is written. What was recorded while the session ran, its responses above all, is listed
beside it.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.drift.detector import Alarm, Detector
from mulligan.drift.journal import SUPERVISOR, JournalReader
from mulligan.drift.settings import DriftSettings
from mulligan.session.runtime.drift_watch import Isolation, read_record

if TYPE_CHECKING:
    from mulligan.model import Event, Point
    from mulligan.session.session import Session

SERIES = 40
"""How many values a series has at most; each is the highest of its stretch of the run."""


class Series:
    """The values of a run of any length, in bounded memory."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._stride = 1
        self._count = 0

    def add(self, value: float) -> None:
        """Take the next value."""
        if self._count % self._stride == 0:
            if len(self._values) == SERIES:
                self._values = [max(pair) for pair in zip(*[iter(self._values)] * 2, strict=True)]
                self._stride *= 2
            self._values.append(value)
        else:
            self._values[-1] = max(self._values[-1], value)
        self._count += 1

    def values(self) -> list[float]:
        """Return the values, oldest first."""
        return [round(value, 3) for value in self._values]


class SignalReport(msgspec.Struct, frozen=True):
    """One signal over a run: its score at the end, the highest one, and how it went."""

    signal: str
    acts: bool
    score: float
    highest: float
    series: list[float]


class AlarmReport(msgspec.Struct, frozen=True):
    """An alarm, and when it came."""

    alarm: Alarm
    at: datetime


class RecordedResponse(msgspec.Struct, frozen=True):
    """What was done about an alarm while the session ran."""

    seq: int
    at: datetime
    signal: str
    rung: str
    why: str
    attempt: int = 0
    wait: float = 0.0
    to: int | None = None


class AgentDrift(msgspec.Struct, frozen=True):
    """The drift of one agent."""

    agent: str
    observations: int
    score: float
    signals: tuple[SignalReport, ...]
    alarms: tuple[AlarmReport, ...]
    responses: tuple[RecordedResponse, ...]
    isolated: Isolation | None


class _Agent:
    """One agent while the events are read."""

    def __init__(self, name: str, settings: DriftSettings) -> None:
        self.name = name
        self.reader = JournalReader(name)
        self.detector = Detector(settings)
        self.series = {signal.name: Series() for signal in self.detector.signals}
        self.highest = dict.fromkeys(self.series, 0.0)
        self.alarms: list[AlarmReport] = []
        self.responses: list[RecordedResponse] = []
        self.observations = 0

    def take(self, event: Event, session: Session) -> None:
        """Observe an event."""
        for seen in self.reader.observe(event, session.internal.changed_contents):
            found = self.detector.observe(seen)
            self.observations += 1
            scores = self.detector.scores()
            # An alarm spends its evidence, so its score is gone from the signal by now.
            scores.update({alarm.signal: alarm.score for alarm in found})
            for name, score in scores.items():
                self.series[name].add(score)
                self.highest[name] = max(self.highest[name], score)
            self.alarms += [AlarmReport(alarm, event.time) for alarm in found]

    def report(self, isolation: Isolation | None) -> AgentDrift:
        """Return what was found."""
        return AgentDrift(
            agent=self.name,
            observations=self.observations,
            score=round(self.detector.score, 3),
            signals=tuple(
                SignalReport(
                    signal=signal.name,
                    acts=signal.acts,
                    score=round(signal.score, 3),
                    highest=round(self.highest[signal.name], 3),
                    series=self.series[signal.name].values(),
                )
                for signal in self.detector.signals
            ),
            alarms=tuple(self.alarms),
            responses=tuple(self.responses),
            isolated=isolation,
        )


def drift_report(
    session: Session, settings: DriftSettings, until: Point | None = None
) -> list[AgentDrift]:
    """Return the drift of every agent, and of every other writer whose work can be observed."""
    agents: dict[str, _Agent] = {}
    for event in session.events(until=until):
        if event.actor != SUPERVISOR and event.actor not in agents:
            agents[event.actor] = _Agent(event.actor, settings)
        for agent in agents.values():
            agent.take(event, session)
        if event.kind in ("drift.noted", "drift.responded"):
            _record(agents, event)
    reports = [
        agent.report(None if until else read_record(session, agent.name).isolated)
        for agent in agents.values()
    ]
    return [one for one in reports if one.observations or one.responses or one.isolated]


def _record(agents: dict[str, _Agent], event: Event) -> None:
    facts: dict[str, Any] = event.payload
    if (agent := agents.get(str(facts.get("agent")))) is not None:
        agent.responses.append(
            RecordedResponse(
                seq=event.seq,
                at=event.time,
                signal=str(facts.get("signal")),
                rung=str(facts.get("rung")),
                why=str(facts.get("why")),
                attempt=int(facts.get("attempt") or 0),
                wait=float(facts.get("wait") or 0.0),
                to=facts.get("to"),
            )
        )
