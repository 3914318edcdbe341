"""Watching a store: interrupted sessions are resumed, as fast as the ladder allows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

import msgspec

from mulligan.errors import UnknownSession
from mulligan.recovery import ladder
from mulligan.recovery.detect import gave_up, reason
from mulligan.recovery.ladder import Attempt, LadderLimits
from mulligan.recovery.plan import attempts, choose, tried
from mulligan.session import Session
from mulligan.session.names import SUPERVISOR
from mulligan.store import Store

POLL_SECONDS = 1.0
"""Seconds between two checks of the store."""

STARTED = "started"
WAITING = "waiting"
STOPPED = "stopped"


class Running(Protocol):
    """A process that recovers a session and then runs it."""

    pid: int

    def poll(self) -> int | None:
        """Return its exit status once it has ended."""
        ...


Start = Callable[[str, str], Running]
"""Starts a process that resumes a session by a rung; on the last rung it ends what still runs and
records that recovery gave up."""


class Notice(msgspec.Struct, frozen=True):
    """What a check found: a session is resumed now (started), later (waiting), or not (stopped)."""

    session: str
    what: str
    why: str
    rung: str
    wait: float = 0.0
    pid: int | None = None
    tried: list[str] = []
    """The rungs that failed, if recovery stopped."""


class _Helper(msgspec.Struct):
    """A process that was started, and the last attempt that was known before it."""

    process: Running
    at: datetime
    before: Attempt | None


class RecoveryWatch:
    """Resumes the interrupted sessions of a store; ``run`` it, or call ``look`` once a second.

    Looking at a session without new events is cheap.
    """

    def __init__(
        self, store: Store, start: Start, limits: LadderLimits = ladder.DEFAULT_LIMITS
    ) -> None:
        self._store = store
        self._start = start
        self._limits = limits
        self._sessions: dict[str, Session] = {}
        self._helpers: dict[str, _Helper] = {}
        self._told: dict[str, tuple[str, str]] = {}

    def look(self) -> list[Notice]:
        """Resume interrupted sessions, and return what is new.

        Raises ``StoreGone`` once the store was removed or replaced.
        """
        self._store.check_present()
        known = self._sessions
        self._sessions = {
            session.name: same
            if (same := known.get(session.name)) and same.created == session.created
            else session
            for session in self._store.sessions()
        }
        found = [self._look_at(session) for session in self._sessions.values()]
        return [notice for notice in found if notice is not None and self._is_news(notice)]

    def run(self, on_notice: Callable[[Notice], None], stop: threading.Event | None = None) -> None:
        """Look until ``stop`` is set, and report what is new; raises ``StoreGone``."""
        ended = stop or threading.Event()
        while not ended.is_set():
            for notice in self.look():
                on_notice(notice)
            # Polled: a process that dies cannot announce it, and its lease has no notification.
            ended.wait(POLL_SECONDS)

    def _look_at(self, session: Session) -> Notice | None:
        try:
            return self._look_into(session)
        except UnknownSession:
            return None  # it was deleted a moment ago

    def _look_into(self, session: Session) -> Notice | None:
        name = session.name
        helper = self._helpers.get(name)
        # One helper per session, even before it has taken the lease: a second one could only fail.
        if helper is not None and helper.process.poll() is None:
            return None
        # Before the reason: a session that was given up still looks interrupted, and must not be
        # started again.
        if (end := gave_up(session)) is not None:
            return Notice(name, STOPPED, end.why, ladder.STOP, tried=end.tried)
        why = reason(session) or failed_to_come_back(session)
        if why is None:
            self._told.pop(name, None)
            return None
        choice = choose(session, self._limits)
        wait = max(choice.wait, self._held_up(session, helper))
        if wait > 0:
            return Notice(name, WAITING, why, choice.rung, wait)
        return self._bring_back(session, why, choice.rung)

    def _bring_back(self, session: Session, why: str, rung: str) -> Notice | None:
        # Read before the start: the new process may record its attempt at once.
        before = _last(session)
        process = self._start(session.name, rung)
        self._helpers[session.name] = _Helper(process, session.internal.clock.now(), before)
        self._told.pop(session.name, None)
        if rung == ladder.STOP:
            return None  # reported once it has stopped
        return Notice(session.name, STARTED, why, rung, pid=process.pid)

    def _held_up(self, session: Session, helper: _Helper | None) -> float:
        """Return how long to wait after a helper that ended before its attempt began."""
        if helper is None or _last(session) != helper.before:
            return 0.0
        passed = (session.internal.clock.now() - helper.at).total_seconds()
        return max(0.0, self._limits.cooldown - max(0.0, passed))

    def _is_news(self, notice: Notice) -> bool:
        """Whether it was not reported before."""
        said = (notice.what, notice.rung)
        if notice.what != STARTED and self._told.get(notice.session) == said:
            return False
        self._told[notice.session] = said
        return True


def is_due(session: Session) -> bool:
    """Whether a session still has to be resumed; another process may have done it meanwhile."""
    return reason(session) is not None or failed_to_come_back(session) is not None


def failed_to_come_back(session: Session) -> str | None:
    """Return why a session that was resumed and failed at once is to be tried again.

    The process that resumed it may have died before it recorded the outcome.
    """
    last = _last(session)
    if (
        session.internal.control("status") != ladder.FAILED
        or last is None
        or last.rung == ladder.STOP
    ):
        return None
    # Whatever the outcome: the lease is released only after it was recorded, and the next attempt
    # takes it before it records anything.
    if session.internal.is_held(SUPERVISOR):
        return None
    if last.outcome not in (ladder.OK, ladder.FAILED):
        last = tried(session)[-1]
    return "it could not be resumed" if last.outcome == ladder.FAILED else None


def _last(session: Session) -> Attempt | None:
    known = attempts(session)
    return known[-1] if known else None
