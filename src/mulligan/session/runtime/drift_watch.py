"""Watching an agent for drift: reads its events, records alarms, and says what to do.

The detector's state is in the session's control under ``drift/AGENT``, which no restore touches. It
is saved with every alarm, in the same transaction, and otherwise every ``SAVE_EVENTS`` events that
it took, or ``MAX_SKIPPED`` that it could pass over. A new process loads it and reads on from there:
it sees what the old one saw, and raises no alarm twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.decoding import ready
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import CONTROL, REFRESHED, Change, event_change
from mulligan.document.values import freeze
from mulligan.drift.detector import Alarm, Detector, load
from mulligan.drift.journal import STARTED, JournalReader
from mulligan.drift.ladder import (
    ISOLATE,
    NOTE,
    RESTARTS,
    ROLLBACK,
    RUNGS,
    Response,
    climbed,
    respond,
    with_response,
)
from mulligan.drift.observation import PROGRESS, Observation
from mulligan.drift.settings import TABLE, DriftSettings
from mulligan.errors import InvalidConfig, MulliganError
from mulligan.session.runtime.rollback import good_before

if TYPE_CHECKING:
    from mulligan.model import Event
    from mulligan.session.session import Session

DRIFT = "drift"

REFRESH_REQUESTS = "refresh"
"""The part of the control in which a supervisor asks single agents to start again."""

SAVE_EVENTS = 500
"""After how many events the state is saved; up to this many are read again after a crash."""

MAX_SKIPPED = 10_000
"""After how many events of others the state is saved, although nothing but its seq has changed."""

MAX_CATCH_UP = 20_000
"""How many events are read of a session that was never watched before."""


class Isolation(msgspec.Struct, frozen=True):
    """Since when an agent is isolated, and why."""

    at: datetime
    why: str


class DriftRecord(msgspec.Struct, omit_defaults=True):
    """What is kept of the watch over an agent, in ``control/drift/AGENT``.

    ``seq`` is the last event that ``detector`` and ``reader`` have seen. ``progressed`` says that
    a task was completed after the last response.
    """

    seq: int = 0
    detector: bytes | None = None
    reader: bytes | None = None
    responses: list[Response] = []
    progressed: bool = False
    isolated: Isolation | None = None


class DriftWatch:
    """Watches one agent through a handle on its session."""

    def __init__(self, session: Session, agent: str, settings: DriftSettings) -> None:
        self._session = session
        self._agent = agent
        self._settings = settings
        self.record = read_record(session, agent)
        self._detector = load(settings, self.record.detector)
        self._reader = _reader(self.record.reader, agent)
        self._noted: dict[str, datetime] = {}
        self._made: list[tuple[Alarm, Response]] = []
        self._unsaved = 0
        self._saved_seq = self.record.seq
        self._is_ending = False
        """Whether the agent was told to end: until it has started again, alarms are only noted."""
        if not self.record.seq:
            self.record.seq = self._saved_seq = max(0, session.head.seq - MAX_CATCH_UP)

    @property
    def detector(self) -> Detector:
        """The detector as of the last look."""
        return self._detector

    def look(self) -> list[Response]:
        """Read what happened since the last look, record alarms, and return what to do.

        The responses are recorded before they are carried out: if that kills the process, the
        next alarm climbs on instead of repeating it.
        """
        for event in self._session.events(since=self.record.seq or None):
            self.take(event)
        return self.respond()

    def take(self, event: Event) -> None:
        """Take an event that was not taken before; earlier ones are passed over."""
        if event.seq <= self.record.seq:
            return
        self.record.seq = event.seq
        self._unsaved += 1
        if event.kind in (REFRESHED, STARTED) and event.payload.get("agent") == self._agent:
            self._is_ending = False
        for seen in self._reader.observe(event, self._changed_files):
            self._made += self._observe(seen)

    def skip_to(self, seq: int) -> None:
        """Pass over the events up to ``seq``: those that were not taken are about other agents."""
        self.record.seq = max(self.record.seq, seq)

    def respond(self) -> list[Response]:
        """Record what the events taken so far led to, and return it; see ``look``."""
        (responses,) = respond_all(self._session, [self])
        return responses

    @property
    def is_due(self) -> bool:
        """Whether there is something to be recorded now."""
        skipped = self.record.seq - self._saved_seq
        return bool(self._made) or self._unsaved >= SAVE_EVENTS or skipped >= MAX_SKIPPED

    def _observe(self, seen: Observation) -> list[tuple[Alarm, Response]]:
        if seen.kind == PROGRESS and seen.name == "task" and not seen.failed:
            self.record.progressed = True
        alarms = self._detector.observe(seen)
        if not alarms:
            return []
        found = [(alarm, self._respond(alarm)) for alarm in alarms]
        return [(alarm, response) for alarm, response in found if self._is_worth_a_note(response)]

    def _respond(self, alarm: Alarm) -> Response:
        now, ladder = self._session.internal.clock.now(), self._settings.ladder
        earlier = climbed(self.record.responses, now, ladder, progressed=self.record.progressed)
        target = self._target(earlier, alarm)
        without = RUNGS if self._is_ending else () if target else (ROLLBACK,)
        response = respond(earlier, alarm, now, ladder, without)
        if response.rung == ROLLBACK:
            response = msgspec.structs.replace(response, to=target)
        self.record.responses = with_response(earlier, response)
        if response.attempt:
            self.record.progressed = False
            self._is_ending = response.rung in (*RESTARTS, ISOLATE)
        if response.rung == ISOLATE:
            self.record.isolated = Isolation(now, response.why)
        return response

    def _target(self, earlier: list[Response], alarm: Alarm) -> int | None:
        """Return the checkpoint from before the drift, older than where it went back to before."""
        limits = [one.since for one in earlier] + [one.to for one in earlier if one.to is not None]
        found = good_before(self._session, min([*limits, min(alarm.evidence, default=alarm.seq)]))
        return None if found is None else found.seq

    def _is_worth_a_note(self, response: Response) -> bool:
        """Whether a response is recorded: a loop that goes on is not noted at every turn."""
        if response.attempt:
            return True
        last = self._noted.get(response.signal)
        seconds = None if last is None else (response.at - last).total_seconds()
        if seconds is not None and 0 <= seconds < self._settings.ladder.cooldown:
            return False
        self._noted[response.signal] = response.at
        return True

    def _changed_files(self, before: bytes | None, after: bytes) -> Iterable[tuple[str, str]]:
        return self._session.internal.changed_contents(before, after)

    def changes(self) -> list[Change]:
        """Return the events that record alarms, responses and the state."""
        self.record.detector = self._detector.dump()
        self.record.reader = msgspec.msgpack.encode(self._reader)
        control = [[[DRIFT, self._agent], _plain(self.record)]]
        events = [_event(self._agent, alarm, response) for alarm, response in self._made]
        last = event_change("drift.saved", control=control, agent=self._agent, seq=self.record.seq)
        return [*events, last]

    def recorded(self) -> list[Response]:
        """Go on from what was recorded; return the responses."""
        made, self._made = self._made, []
        self._unsaved, self._saved_seq = 0, self.record.seq
        return [response for _, response in made]


def respond_all(session: Session, watches: Iterable[DriftWatch]) -> list[list[Response]]:
    """Record what events led to, of all watches in one transaction; return the responses of each.

    What is not due is recorded later.
    """
    watches = list(watches)
    due = [watch for watch in watches if watch.is_due]
    if due:
        changes = [change for watch in due for change in watch.changes()]
        session.internal.commit_events(lambda _: changes)
    return [watch.recorded() if watch in due else [] for watch in watches]


def settings_of(session: Session) -> DriftSettings:
    """Return the settings of a session: its workflow's, or else its store's."""
    from mulligan.config.tables import TableReader
    from mulligan.drift.table import parse_drift, read_drift

    workflow = session.state.get("orchestrator/workflow")
    table = workflow.get(TABLE) if isinstance(workflow, dict) else None
    if isinstance(table, dict) and table:
        # Checked when it was written. A version that knows other keys falls back to the store's.
        try:
            return parse_drift(table, TableReader("", "the state", InvalidConfig))
        except MulliganError:
            pass
    return read_drift(session.internal.engine.directory)


def read_record(session: Session, agent: str) -> DriftRecord:
    """Return what is kept of the watch over an agent; an empty record if nothing is."""
    found = session.internal.control((DRIFT, agent))
    try:
        known = isinstance(found, dict)
        return msgspec.convert(found, ready(DriftRecord)) if known else DriftRecord()
    except msgspec.ValidationError:  # of a later version
        return DriftRecord()


def isolated(session: Session) -> dict[str, Isolation]:
    """Return the agents that are isolated, with since when and why."""
    known = session.internal.control(DRIFT, {})
    records = {agent: read_record(session, agent) for agent in known}
    return {agent: record.isolated for agent, record in records.items() if record.isolated}


def release(session: Session, agent: str, why: str) -> bool:
    """Let an isolated agent go on, at the ground of the ladder; return whether it was isolated."""
    place = [DRIFT, agent]

    def decide(document: Document) -> Iterable[Change]:
        if document.find((*CONTROL, *place)) is MISSING:
            return []
        record = DriftRecord(seq=session.head.seq)
        control = [[place, _plain(record)]]
        return [event_change("drift.released", control=control, agent=agent, why=why)]

    was = agent in isolated(session)
    session.internal.commit_events(decide)
    return was


def _event(agent: str, alarm: Alarm, response: Response) -> Change:
    facts: dict[str, Any] = {
        "agent": agent,
        "signal": alarm.signal,
        "acts": alarm.acts,
        "score": alarm.score,
        "why": alarm.why,
        "evidence": list(alarm.evidence),
        "rung": response.rung,
    }
    if response.attempt:
        facts["attempt"] = response.attempt
    if response.wait:
        facts["wait"] = round(response.wait, 3)
    if response.to is not None:
        facts["to"] = response.to
    return event_change("drift.noted" if response.rung == NOTE else "drift.responded", **facts)


def _plain(record: DriftRecord) -> Any:
    return freeze(msgspec.to_builtins(record, builtin_types=(datetime, bytes)))


def _reader(data: bytes | None, agent: str) -> JournalReader:
    if data is None:
        return JournalReader(agent)
    try:
        return msgspec.msgpack.decode(data, type=ready(JournalReader))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return JournalReader(agent)
