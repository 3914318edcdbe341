"""The automatic upkeep of a store handle, in its own thread.

The first checkpoint of a process that has been up for a while starts it, ``Store.close`` ends it.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from mulligan.engine import Engine
from mulligan.errors import MulliganError
from mulligan.upkeep.record import INTERVAL_SECONDS

SETTLED_SECONDS = 60.0
"""A process that ends sooner than this does no upkeep."""

CLOSE_SECONDS = 2.0
"""How long closing a store waits for the slice that is being worked on."""


class Maintenance:
    """The upkeep of one store handle; ``work_done`` is called after every checkpoint."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Nothing is done at once: most processes end soon, and their users wait for that.
        self._next = engine.clock.monotonic() + SETTLED_SECONDS
        self._next_room = engine.clock.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def work_done(self) -> None:
        """Start the upkeep in a thread, if this process has lived long enough for it."""
        now = self._engine.clock.monotonic()
        is_running = self._thread is not None and self._thread.is_alive()
        if now < self._next or is_running or self._stop.is_set() or self._pid != os.getpid():
            return
        self._next = now + INTERVAL_SECONDS
        # A daemon: it must not keep a process alive that has nothing else to do.
        thread = threading.Thread(target=self._run, name="mulligan-upkeep", daemon=True)
        with suppress(RuntimeError):  # the program exits, or may have no more threads
            thread.start()
            self._thread = thread

    def make_room(self) -> None:
        """Prune because the store has reached its quota; not for every checkpoint again."""
        now = self._engine.clock.monotonic()
        if now >= self._next_room:
            self._next_room = now + INTERVAL_SECONDS
            from mulligan.upkeep.maintain import make_room  # most processes do not need it

            make_room(self._engine)

    def maintain(self, budget_seconds: float) -> None:
        """Look after the store now, if that is due, for at most this many seconds."""
        from mulligan.upkeep.maintain import maintain

        maintain(self._engine, budget_seconds, self._stop.is_set)

    def close(self) -> None:
        """Let the thread end at the next slice; wait for it only briefly."""
        self._stop.set()
        thread = self._thread
        # In that thread itself, garbage is collected, too, which may close the store.
        if thread in (None, threading.current_thread()) or self._pid != os.getpid():
            return
        thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        from mulligan.upkeep.maintain import maintain  # most processes do not need them
        from mulligan.upkeep.verify.background import verify_if_due

        maintain(self._engine, INTERVAL_SECONDS, self._stop.is_set)
        # A store that is gone, a full disk: the program finds out by itself.
        with suppress(MulliganError, OSError):
            verify_if_due(self._engine, self._stop)
