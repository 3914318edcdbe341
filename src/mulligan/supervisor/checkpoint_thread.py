"""The supervisor's checkpoints: taken in a thread of their own, so that nobody waits for files."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from mulligan.errors import UnknownPoint
from mulligan.model import Checkpoint
from mulligan.session import Session


class CheckpointThread:
    """Takes checkpoints one after the other through a handle of its own on the session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._thread = ThreadPoolExecutor(1, "mulligan-checkpoints")
        session.internal.watch()

    async def take(
        self, kind: str, note: str | None = None, label: str | None = None
    ) -> Checkpoint:
        """Take a checkpoint of state and files."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._thread, lambda: self._session.checkpoint(kind, note=note, label=label)
        )

    def newest(self) -> datetime | None:
        """Return when the newest checkpoint was taken, by whomever."""
        try:
            return self._session.find_checkpoint("@latest").time
        except UnknownPoint:
            return None

    def close(self) -> None:
        """Wait for what is being taken, keep what is known of the files, give the lease up."""
        self._thread.shutdown()
        self._session.close()
