"""How far a capture is: counted in files and in bytes, so that one large file shows as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mulligan.model import Digest

PROGRESS_EVERY_FILES = 256
PROGRESS_EVERY_BYTES = 8 << 20
"""After how many files or bytes a capture tells how far it is."""

Progress = Callable[[int, int], None]
"""Is told how many files, and how many bytes of files, a capture has read so far."""


def untold(files: int, count: int) -> None:
    """Report nothing."""


class ObjectSink(Protocol):
    """Takes in objects, as a ``Bundle`` does."""

    def put(self, kind: int, data: bytes) -> Digest:
        """Take in an object and return its digest; see ``Bundle.put``."""
        ...


class CountingSink:
    """Hands the content of files on to another sink, and tells how much it was."""

    def __init__(self, behind: ObjectSink, tell: Progress) -> None:
        self._behind = behind
        self._tell = tell
        self._files = self._bytes = self._told_bytes = 0

    def begin_file(self) -> None:
        """Count a file that is about to be read."""
        self._files += 1
        if self._files % PROGRESS_EVERY_FILES == 0:
            self._report()

    def put(self, kind: int, data: bytes) -> Digest:
        """Take in a piece of a file; see ``Bundle.put``."""
        digest = self._behind.put(kind, data)
        self._bytes += len(data)
        if self._bytes - self._told_bytes >= PROGRESS_EVERY_BYTES:
            self._report()
        return digest

    def _report(self) -> None:
        self._told_bytes = self._bytes
        self._tell(self._files, self._bytes)
