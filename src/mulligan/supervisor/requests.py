"""Requests to a running supervisor: a pause, or a checkpoint of the whole team."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec

from mulligan import procfs
from mulligan.decoding import ready
from mulligan.document.document import Document
from mulligan.document.fold import CONTROL, Change, event_change
from mulligan.document.values import freeze
from mulligan.errors import Conflict, NotRunning
from mulligan.procfs import is_stopped
from mulligan.recovery.detect import supervisor_of
from mulligan.session import Session
from mulligan.session.names import check_name
from mulligan.session.write.leases import process_of
from mulligan.supervisor.machine import KILL_AFTER_PAUSE_SECONDS
from mulligan.supervisor.records import RUNNING
from mulligan.supervisor.stimuli import CHECKPOINT, PAUSE, Wanted

_POLL_SECONDS = 0.05
_START_SECONDS = 2.0
"""Shortest time to wait for a supervisor that is still starting."""

_CHECKPOINT_SECONDS = 60.0
"""Seconds that a checkpoint may take once all agents have answered."""


class Answer(msgspec.Struct, frozen=True):
    """The result of a request: agents that answered or were late, and the checkpoint."""

    id: str
    answered: tuple[str, ...]
    late: tuple[str, ...]
    checkpoint: str | None
    status: str


def request_pause(session: Session, timeout: float = 30.0) -> Answer:
    """Pause a team: every agent ends at a safe point, then a checkpoint is taken.

    Returns when that is done. An agent that has not reached one after ``timeout`` seconds gets
    SIGTERM, and SIGKILL two seconds later. Raises ``NotRunning`` when no supervisor runs the
    session or it is stopped, and ``Conflict`` while another request is pending.
    """
    id = _ask(session, PAUSE, timeout)
    return _wait(
        session, id, timeout + KILL_AFTER_PAUSE_SECONDS + _CHECKPOINT_SECONDS, until_over=True
    )


def request_checkpoint(
    session: Session,
    limit: float = 30.0,
    *,
    kind: str = Wanted().kind,
    note: str | None = None,
    label: str | None = None,
) -> Answer:
    """Take a checkpoint with every agent at a safe point; after ``limit`` seconds without the rest.

    Its note names the agents that answered and those that were late. Raises as ``request_pause``.
    """
    check_name(kind, "checkpoint kind")
    if label is not None:
        check_name(label, "label")
    id = _ask(session, CHECKPOINT, limit, Wanted(kind, note, label))
    return _wait(session, id, limit + _CHECKPOINT_SECONDS, until_over=False)


def _ask(session: Session, kind: str, seconds: float, wanted: Wanted | None = None) -> str:
    deadline = session.internal.clock.now() + timedelta(seconds=seconds)
    _wait_until_it_runs(session, seconds)
    id = f"{kind}-{session.internal.clock.wall_ns():x}-{os.getpid():x}"
    fields = {"id": id, "kind": kind, "deadline": deadline}
    request = freeze(fields | ({"wanted": msgspec.structs.asdict(wanted)} if wanted else {}))

    def decide(document: Document) -> Iterable[Change]:
        # Decided in the transaction: of two requests at once, one is refused instead of replacing
        # the other.
        under_way = document.find((*CONTROL, "request", "kind"))
        if isinstance(under_way, str) and (under_way == PAUSE or kind == CHECKPOINT):
            raise Conflict(
                f"A {under_way} is under way in {session.name!r} already.",
                hint="Wait until it is done, then ask again.",
            )
        return [event_change("orchestrator.asked", control=[[["request"], request]], request=kind)]

    # Durable before the signal: the supervisor reads the request as soon as it is woken.
    session.internal.commit_events(decide)
    pid = _supervisor(session)
    # SIGUSR1 would end a process without a handler. Such a supervisor polls for requests.
    if _listens(pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
    return id


def _wait_until_it_runs(session: Session, seconds: float) -> None:
    """Wait while the holder of the lease recovers the session; raises ``NotRunning``."""
    clock = session.internal.clock
    until = clock.monotonic() + max(seconds, _START_SECONDS)
    # Polled: a supervisor that recovers a session ignores signals and writes no answer yet.
    while _is_preparing(_supervisor(session)) or session.internal.control("status") != RUNNING:
        clock.sleep(_POLL_SECONDS)
        if clock.monotonic() >= until:
            raise NotRunning(
                f"The session {session.name!r} is still being recovered.",
                hint="Try again when its agents run.",
            )


def _listens(pid: int) -> bool:
    """Whether a process handles SIGUSR1; assumed where there is no /proc."""
    return _is_in_mask(pid, "SigCgt", unknown=True)


def _is_preparing(pid: int) -> bool:
    """Whether a process ignores SIGUSR1, as it does while it recovers a session."""
    return _is_in_mask(pid, "SigIgn", unknown=False)


def _is_in_mask(pid: int, name: str, *, unknown: bool) -> bool:
    found = procfs.status(pid)
    if found is None:
        return unknown and not procfs.is_available()
    return bool(int(found[name], 16) >> (signal.SIGUSR1 - 1) & 1) if name in found else unknown


def _wait(session: Session, id: str, seconds: float, *, until_over: bool) -> Answer:
    clock = session.internal.clock
    until = clock.monotonic() + seconds
    while clock.monotonic() < until:
        control: dict[str, Any] = session.internal.control("", {})
        barrier, status = control.get("barrier") or {}, control.get("status")
        if barrier.get("id") == id and not (until_over and status == RUNNING):
            return msgspec.convert({**barrier, "status": status}, ready(Answer))
        if status != RUNNING:
            break
        # Each round: a supervisor that dies while it is asked never answers.
        _supervisor(session, "It will do what it was asked for then.")
        # Polled, not signalled: this process may be any program, with handlers of its own.
        clock.sleep(_POLL_SECONDS)
    raise NotRunning(f"The supervisor of {session.name!r} has not answered.")


def _supervisor(session: Session, then: str = "Ask again then.") -> int:
    """Return the pid of the supervisor; raises ``NotRunning``, also if it is stopped."""
    found = supervisor_of(session)
    if found is None:
        raise NotRunning(f"No supervisor runs the session {session.name!r}.")
    pid = process_of(found)
    if pid is None:
        where = f"The session {session.name!r} is run on {found.machine}."
        raise NotRunning(where, hint=f"Run the command on {found.machine}.")
    if is_stopped(pid):
        raise NotRunning(
            f"The supervisor of {session.name!r}, process {pid}, is stopped (SIGSTOP or Ctrl-Z).",
            hint=f"`kill -CONT {pid}` lets it go on. {then} Or `kill -9 {pid}` and "
            "`mulligan resume`: nothing acknowledged is lost.",
        )
    return pid
