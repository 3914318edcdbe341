"""Rounds of a capture: what moved while it was captured is looked at again, until nothing does.

Between the listing of a directory and the reading of its files other programs go on. A file that
was renamed from a directory that was still to be listed to one that had been would be in neither.
So after all was read, the directories are compared with what was listed, and those that changed are
listed again. Each round ends with the objects of git repositories; see ``repositories``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from mulligan.workspace.capture.capture import Capture
from mulligan.workspace.capture.git_order import PACKS, GitDirectories, joined, object_directories
from mulligan.workspace.capture.ignore import Rules
from mulligan.workspace.capture.index import TIMESTAMP_GRAIN_NS
from mulligan.workspace.capture.scan import Changes, Scan

RETRY_DELAYS_SECONDS = (0.0, 0.005, 0.02, 0.06)
"""Seconds before each further look at a workspace: a mass rename may be over by then.

There are no more of them than that: a program that never pauses must not stop a capture.
"""

MAX_PACK_LISTINGS = 8
"""How often packs are listed that were replaced by others while they were read."""

Told = Callable[[], Collection[bytes] | None]
"""Returns the directories in which names have changed by now, or None if any may have."""


class Rescan:
    """Captures what a scan found, and then what has moved meanwhile."""

    def __init__(
        self,
        root: bytes,
        rules: Rules,
        capture: Capture,
        told: Told | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._root = root
        self._rules = rules
        self._capture = capture
        self._told = told
        self._sleep = sleep
        self._fresh_from = 0

    def run(self, changes: Changes, taken: int) -> None:
        """Take in what a look that began at a time found, and then what moved since."""
        # Whatever changed from here on is not trusted to have been listed: a watcher's word is as
        # old as that, and two changes may have left the times as they were.
        self._fresh_from = taken - TIMESTAMP_GRAIN_NS
        for pause in RETRY_DELAYS_SECONDS:
            is_restless = self._take(changes)
            if is_restless and pause:
                self._sleep(pause)
            found = self._moved(is_restless=is_restless)
            if found is None:
                return
            changes = found
        self._take(changes)
        homes = GitDirectories(self._capture.directories)
        # Git directories have been read in the order that makes them consistent nevertheless.
        self._capture.doubt(path for path in changes.directories if homes.of(path) is None)

    def _moved(self, *, is_restless: bool) -> Changes | None:
        """Look for names that have changed since they were listed; None if none have."""
        told = self._told() if self._told is not None else None
        known = self._capture.directories
        if told is None and not is_restless:
            return None
        doubted = {path.rpartition(b"/")[0] for path in self._capture.vanished}
        paths = list(known) if told is None else sorted(doubted.union(told) & known.keys())
        changes = self._names(paths)
        return changes if changes.directories or changes.gone or changes.leaves else None

    def _take(self, changes: Changes) -> bool:
        """Capture what was found; return whether something may have moved meanwhile."""
        capture = self._capture
        homes = GitDirectories(changes.directories, capture.directories)
        touched = homes.of_all(changes.directories, [*changes.leaves, *changes.gone])
        objects = [path for path in changes.leaves if homes.is_object(path)] if touched else []
        if objects:
            later = set(objects)
            changes.leaves = [path for path in changes.leaves if path not in later]
        capture.vanished.clear()
        capture.take(changes)
        if touched:
            self._take_objects(sorted(touched), objects, homes)
        is_fresh = any(d.ctime >= self._fresh_from for d in changes.directories.values())
        return changes.moved or bool(capture.vanished) or is_fresh

    def _take_objects(
        self, touched: list[bytes], leaves: list[bytes], homes: GitDirectories
    ) -> None:
        """Capture the objects of git directories whose refs have been read.

        The git directories themselves come before: refs that were not found have been packed.
        """
        capture = self._capture
        capture.take(self._names(touched))
        loose = [path for home in touched for path in object_directories(home, capture.directories)]
        packed = {path for path in leaves if homes.is_packed(path)}
        capture.take(self._names(loose, set(leaves) - packed))
        for _ in range(MAX_PACK_LISTINGS):
            before = len(capture.vanished)
            capture.take(self._names([joined(home, PACKS) for home in touched], packed))
            if len(capture.vanished) == before:
                return
            packed = set()

    def _names(self, paths: Iterable[bytes], leaves: Iterable[bytes] = ()) -> Changes:
        """Look at the names in known directories; add leaves that are to be read as well."""
        scan = Scan.again(self._root, self._capture.directories, self._rules, self._fresh_from)
        changes = scan.names(paths)
        changes.leaves = list({*changes.leaves, *leaves})
        return changes
