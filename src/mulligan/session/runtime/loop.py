"""The loop of an agent: cycles with safe points between them.

At a safe point the agent's state is consistent. So routine checkpoints are taken there, requests of
the supervisor are answered there, and a long-running process is replaced by a new one there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from mulligan.document.fold import REFRESHED, event_change
from mulligan.document.values import freeze
from mulligan.errors import ApprovalPending, EffectInDoubt, StoreGone
from mulligan.session.names import SUPERVISOR
from mulligan.session.runtime.usage import usage
from mulligan.session.write.leases import this_process

if TYPE_CHECKING:
    from mulligan.session.session import Session

RESTART_STATUS = 75
"""The exit status that asks a supervisor to start the agent again: ``EX_TEMPFAIL``."""

ORPHAN_GRACE_SECONDS = 30.0
"""Seconds that an agent continues after its supervisor died, so that a new one can take over."""

PARK_POLL_SECONDS = 0.5
"""How often an agent that waits for an effect looks again."""

PAUSE = "pause"
CHECKPOINT = "checkpoint"


class Cycle:
    """One turn of an agent's loop; as a context manager, it records a failure of its body."""

    def __init__(self, session: Session, number: int) -> None:
        self._session = session
        self._clock = session.internal.clock
        self._began = self._clock.monotonic()
        self.number = number
        self.has_ended = False
        self.waits_for: str | None = None
        """The effect that has to be approved, or settled, before the work can go on."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if isinstance(error, ApprovalPending | EffectInDoubt) and error.effect is not None:
            self.waits_for = error.effect
            self._record(None)  # it has not failed
            return True
        if isinstance(error, Exception):
            self.fail(f"{type(error).__name__}: {error}")
        elif error is None:
            self.end()
        return False

    def end(self) -> None:
        """Record that the cycle succeeded; the first record counts."""
        self._record(None)

    def fail(self, reason: str) -> None:
        """Record that the cycle failed, and keep the present in a recovery checkpoint."""
        if self.has_ended:
            return
        with suppress(StoreGone):  # the error that ended the cycle is more useful
            self._record(reason[:500])
            note = f"cycle {self.number} failed: {reason}"[:500]
            self._session.checkpoint("recovery", note=note)

    def _record(self, error: str | None) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        seconds = round(self._clock.monotonic() - self._began, 6)
        cycle = {"number": self.number, "seconds": seconds, "error": error}
        self._session.agent.record("agent.cycle", {"last_cycle": cycle})


class Loop:
    """Yields cycles until the agent is asked to pause; see ``Session.loop``."""

    def __init__(
        self,
        session: Session,
        checkpoint_interval: float,
        refresh_after: float,
        collect: Callable[[], Any] | None,
    ) -> None:
        self._session = session
        self._clock = session.internal.clock
        self._checkpoint_interval = checkpoint_interval
        self._refresh_after = refresh_after
        self._collect = collect
        self._began = self._taken = self._clock.monotonic()
        self._alone_since: float | None = None

    def __iter__(self) -> Iterator[Cycle]:
        known = self._session.agent.get().get("last_cycle") or {}
        number = int(known.get("number", 0))
        # It imports the detector, and most programs that import sessions run no loop.
        from mulligan.session.runtime.loop_drift import LoopDrift

        self._drift = LoopDrift(self._session, self._checkpoint, self._replace_process)
        self._drift.refuse_isolated()
        if self._session.internal.is_supervised:
            self._session.agent.update(state="working")
        else:
            self._introduce()
            self._drift.watch()
        while self._goes_on():
            number += 1
            cycle = Cycle(self._session, number)
            try:
                yield cycle
            except GeneratorExit:
                # An exception or a break left the body; a generator cannot tell which.
                cycle.fail("the loop was left")
                raise
            cycle.end()
            if cycle.waits_for is not None and not self._park(cycle.waits_for):
                return

    def _park(self, effect: str) -> bool:
        """Wait until an effect is approved, denied or settled; return False if the loop ends."""
        self._session.agent.update(state="waiting", last_action=f"waits for effect {effect}")
        while self._is_open(effect):
            self._clock.sleep(PARK_POLL_SECONDS)
            # Requests are answered meanwhile: a person may take days.
            if not self._goes_on():
                return False
        self._session.agent.update(state="working", last_action=f"effect {effect} was answered")
        return True

    def _is_open(self, effect: str) -> bool:
        found = self._session.effects.get(effect)
        return found.is_pending or found.status == "in_doubt"

    def _goes_on(self) -> bool:
        """Do what is due at a safe point; return False when the loop has to end.

        Raises ``StoreGone`` if the store was removed or replaced: nothing can be saved any more.
        """
        self._session.internal.check_present()
        self._session.agent.expect(None)
        now = self._clock.monotonic()
        # Requests before the refresh and the checkpoint: a pause has a deadline, the others do not.
        if not self._answer() or not self._is_supervised(now):
            return False
        if not self._drift.respond():
            return False
        if now - self._began >= self._refresh_after:
            self._refresh_for_age()
        if now - self._taken >= self._checkpoint_interval:
            self._checkpoint("routine")
            self._taken = now
        return True

    def _introduce(self) -> None:
        """Record this process and its command, if there is no supervisor to do it."""
        from mulligan.redact import without_secrets  # compiles long patterns

        known = self._session.agent.get()
        has_died = "process_id" in known and known.get("state") != "done"
        before = known.get("restarts")
        process = {
            "process_id": os.getpid(),
            "identity": this_process(),
            "started": self._clock.now(),
            "command": without_secrets(sys.orig_argv),
            "directory": _here(),
            "environment": self._session.internal.variables,
            "restarts": (before if isinstance(before, int) else 0) + 1 if has_died else 0,
        }
        self._session.agent.record("agent.started", {**process, "state": "working"})

    def _checkpoint(self, kind: str, note: str | None = None) -> None:
        """Take a checkpoint that records the resource usage of this process."""
        if (used := usage(os.getpid())) is not None:
            self._session.agent.update(resources=used)
        self._session.checkpoint(kind, note)

    def _answer(self) -> bool:
        """Answer the supervisor's requests; return False for a pause."""
        request = self._session.internal.control("request")
        name = self._session.actor
        if not request or self._session.internal.control(("answers", name)) == request["id"]:
            return True
        fields: dict[str, Any] = {} if self._collect is None else {"private": self._collect()}
        pauses = request["kind"] == PAUSE
        if pauses:
            fields["state"] = "suspended"
        changes = [[["agents", name, key], freeze(value)] for key, value in fields.items()]
        # One transaction with the private state: the supervisor's checkpoint follows the answer,
        # and must hold what belongs to it.
        answer = [["answers", name], request["id"]]
        self._session.internal.commit_events(
            lambda _: [
                event_change("agent.answered", changes, [answer], agent=name, to=request["id"])
            ]
        )
        return not pauses

    def _is_supervised(self, now: float) -> bool:
        """Whether the supervisor is alive or died only just now; True if there never was one."""
        if not self._session.internal.is_supervised or self._session.internal.is_held(SUPERVISOR):
            self._alone_since = None
            return True
        if self._alone_since is None:
            self._alone_since = now
        if now - self._alone_since < ORPHAN_GRACE_SECONDS:
            return True
        self._checkpoint("recovery", "the supervisor is gone")
        self._session.agent.update(state="suspended", last_action="the supervisor is gone")
        return False

    def _refresh_for_age(self) -> None:
        """Take a recovery checkpoint, then replace this process with a new one."""
        # Before the state says that it starts again: a crash in between loses nothing.
        self._checkpoint("recovery", f"refresh after {_span(self._refresh_after)}")
        self._session.agent.record(REFRESHED, {"state": "starting", "last_action": "refresh"})
        self._replace_process()

    def _replace_process(self) -> NoReturn:
        """Let the supervisor start this process again, or become the new one."""
        if self._session.internal.is_supervised:
            raise SystemExit(RESTART_STATUS)
        # Before execv, which runs no cleanup: the lease must be free and the output written.
        self._session.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606


def _span(seconds: float) -> str:
    """Return a time span in the largest unit that fits: 2 seconds, 1.5 hours."""
    units = ((3600, "hour"), (60, "minute"), (1, "second"))
    length, unit = next((u for u in units if seconds >= u[0]), units[-1])
    count = f"{seconds / length:.3g}"
    return f"{count} {unit}" if count == "1" else f"{count} {unit}s"


def _here() -> str | None:
    """Return the directory of this process, unless it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None
