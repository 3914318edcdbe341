"""The supervisor's checkpoints: a thread of their own, so that the event loop never waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from mulligan.errors import UnknownPoint
from mulligan.model import Checkpoint
from mulligan.session import Session
from mulligan.session.runtime.quiet import QuietCheckpoints


class CheckpointThread:
    """Takes checkpoints one at a time through its own handle on the session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # One thread: two captures of one workspace would read all files twice and wait for each
        # other.
        self._thread = ThreadPoolExecutor(1, "mulligan-checkpoints")
        self._quiet = QuietCheckpoints(session)

    async def take(
        self, kind: str, note: str | None = None, label: str | None = None
    ) -> Checkpoint:
        """Take a checkpoint of state and files."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._thread, lambda: self._session.checkpoint(kind, note=note, label=label)
        )

    async def run(self, work: Callable[[Session], None]) -> None:
        """Do something else with the handle, after the checkpoints that wait."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, work, self._session)

    async def look_for_changes(self) -> Checkpoint | None:
        """Take a checkpoint if the files have changed and then stayed as they are."""
        loop = asyncio.get_running_loop()
        # In the thread of the captures: they use the same watcher.
        return await loop.run_in_executor(self._thread, self._quiet.look)

    def newest(self) -> datetime | None:
        """Return when the newest checkpoint of the session was taken, by any process."""
        try:
            return self._session.checkpoints.at("@latest").time
        except UnknownPoint:
            return None

    def close(self) -> None:
        """Wait for the checkpoint that is being taken. The opener closes the session."""
        # Waited for: the session is closed next, and a checkpoint without it would fail.
        self._thread.shutdown()
