"""Checkpoints of a workspace that others change: taken when it has been quiet after a change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mulligan.model import Checkpoint
    from mulligan.session.session import Session

QUIET_SECONDS = 2.0
"""How long nothing may change before a checkpoint is taken."""

LONGEST_SECONDS = 60.0
"""How long a change waits at most, in a directory that is never quiet."""

NOTE = "the files changed"

LOOK_SECONDS = 0.5
"""Seconds between two looks; one look reads what the kernel has queued."""


class QuietCheckpoints:
    """Takes a checkpoint when the files have changed and then stayed as they are for a while.

    Call :meth:`look` about every ``LOOK_SECONDS``, from one thread. Where the system cannot watch
    the files, they are scanned every ``longest`` seconds instead.
    """

    def __init__(
        self, session: Session, quiet: float = QUIET_SECONDS, longest: float = LONGEST_SECONDS
    ) -> None:
        self._session = session
        self._quiet = quiet
        self._longest = longest
        self._first: float | None = None
        self._last = 0.0
        self._newest: int | None = None
        session.internal.watch()

    def look(self) -> Checkpoint | None:
        """Look for changes, and return the checkpoint if it was time for one."""
        now = self._session.internal.clock.monotonic()
        if self._has_changed():
            self._first = now if self._first is None else self._first
            self._last = now
        if self._first is None:
            return None
        if now - self._last < self._quiet and now - self._first < self._longest:
            return None
        return self.take()

    def take(self) -> Checkpoint | None:
        """Take a checkpoint now; None if neither files nor state differ from the last one.

        One that fails, or gets no files since there is no room, is tried again after ``longest``.
        """
        # Before the capture: what changes during it is seen by the next look.
        self._first = None
        is_whole = False
        try:
            taken = self._session.checkpoint("routine", note=NOTE, if_changed=True)
            is_whole = taken.coverage is None or taken.coverage.refused is None
        finally:
            if not is_whole:
                self._first = self._session.internal.clock.monotonic()
                self._last = self._first + self._longest
        is_new, self._newest = taken.seq != self._newest, taken.seq
        return taken if is_new else None

    def _has_changed(self) -> bool:
        changed = self._session.internal.look_for_changes()
        # Unknown counts as changed: it is due after the longest wait, by a scan.
        return True if changed is None else changed
