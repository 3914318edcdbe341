"""The result of a check of the store, and its record: an event, and ``control.verify``.

As with drills, the record is outside of what a restore changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from mulligan.decoding import ready
from mulligan.document.fold import Change, event_change
from mulligan.document.values import freeze
from mulligan.model import Problem, Report
from mulligan.session import Session
from mulligan.store import Store
from mulligan.upkeep.recorded import plain, recorded_problems

PASSED = "verify.passed"
FAILED = "verify.failed"

VERIFY = "verify"
"""Where in ``control`` the last result is."""


class VerifyResult(msgspec.Struct, frozen=True):
    """How a check of the whole store went.

    Without ``full`` and ``sample``, only the structure was checked. ``problem_count`` counts all
    problems, also those that the record does not name.
    """

    at: datetime
    full: bool
    sample: float | None
    seconds: float
    stored_bytes: int
    read_bytes: int
    problem_count: int
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was broken."""
        return not self.problem_count


def record_report(session: Session, report: Report, seconds: float) -> VerifyResult:
    """Record a check of the store on the timeline of a session, and note the damage it found.

    Raises what a write raises, for example ``DamagedJournal`` if the journal cannot be written.
    """
    from mulligan.check.verify import note_findings  # slow to import, and status only reads

    internal = session.internal
    note_findings(internal.engine, report)
    result = VerifyResult(
        at=internal.clock.now(),
        full=report.full,
        sample=report.sample,
        seconds=round(seconds, 3),
        stored_bytes=report.stored_bytes,
        read_bytes=report.read_bytes,
        problem_count=len(report.problems),
        problems=recorded_problems(report.problems),
    )
    internal.commit_events(lambda _: [_change(result)])
    return result


def _change(result: VerifyResult) -> Change:
    return event_change(
        PASSED if result.ok else FAILED,
        control=[[[VERIFY], freeze(plain(result), ("control", VERIFY))]],
        full=result.full,
        sample=result.sample,
        read_bytes=result.read_bytes,
        problems=result.problem_count,
    )


def last_verify(session: Session) -> VerifyResult | None:
    """Return the last check that a session recorded; None if there was none."""
    found = session.internal.control(VERIFY)
    return None if found is None else msgspec.convert(found, ready(VerifyResult))


def newest_verify(store: Store, known: Iterable[Session] = ()) -> VerifyResult | None:
    """Return the last check of a store, whichever of its sessions recorded it.

    ``known`` are handles of some of them, which have read their documents already.
    """
    sessions = {session.name: session for session in (*store.sessions(), *known)}
    found = [last for one in sessions.values() if (last := last_verify(one)) is not None]
    return max(found, key=lambda result: result.at, default=None)
