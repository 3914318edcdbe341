"""How much a store may still grow: its quota, and the space that it leaves free.

The file system keeps a *reserve*: 1 GB, or 1 % of it where that is less. Captures of files stop
before they would use it. The journal may use it, and so may the checkpoint that a restore takes
first: both are small, and neither recording nor recovery should stop for want of space.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

RESERVE_BYTES = 1_000_000_000
RESERVE_SHARE = 100
"""The reserve is at most this part of the file system."""

QUOTA, RESERVE = "quota", "reserve"
QUOTA_REACHED = "the store has reached its quota"


class Allowance(msgspec.Struct, frozen=True):
    """How many bytes a store may still grow, and what limits it: its quota or the reserve."""

    bytes: int
    limit: str
    reason: str


class StorageLimit:
    """Measures a store and its file system; a store in memory has no limit."""

    def __init__(self, directory: Path | None, quota: int | None = None) -> None:
        self._directory = directory
        self.quota = quota

    def size(self) -> int:
        """Return the bytes that packs and journal occupy; holes in them do not count."""
        if self._directory is None:
            return 0
        return sum(_occupied(self._directory / name) for name in ("packs", "journal"))

    def allowance(self) -> Allowance | None:
        """Return how much the store may grow now; None without any limit, or if it is gone."""
        if self._directory is None:
            return None
        try:
            reserve = self._reserve(self._directory)
        except FileNotFoundError:
            return None  # the next write says what happened to the store
        if self.quota is None:
            return reserve
        # The packs are listed only where there is a quota: it takes a call for each.
        left = self.quota - self.size()
        reason = f"{QUOTA_REACHED} of {_megabytes(self.quota)}"
        return min(Allowance(left, QUOTA, reason), reserve, key=lambda found: found.bytes)

    def _reserve(self, directory: Path) -> Allowance:
        found = os.statvfs(directory)
        reserve = min(RESERVE_BYTES, found.f_blocks * found.f_frsize // RESERVE_SHARE)
        left = found.f_bavail * found.f_frsize - reserve
        words = f"the disk of the store would have less than {_megabytes(round(reserve, -4))} free"
        return Allowance(left, RESERVE, words)


def _occupied(directory: Path) -> int:
    """Return what the files of a directory occupy; some may be removed meanwhile."""
    total = 0
    with os.scandir(directory) as found:
        for entry in found:
            try:
                total += entry.stat(follow_symlinks=False).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def _megabytes(count: int) -> str:
    return f"{count / 1_000_000:,.6g} MB"
