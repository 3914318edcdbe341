"""Rounds of a capture: what moved during the capture is looked at again until it settles.

Other programs keep running between the listing of a directory and the reading of its files. A file
renamed from a directory that was not yet listed into one that already was would be in neither. So
after everything was read, the directories are compared with their listings, and those that changed
are listed again. Each round ends with the objects of git repositories; see ``git_order``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from mulligan.workspace.capture.capture import Capture
from mulligan.workspace.capture.git_order import (
    PACKED_REFS,
    PACKS,
    GitDirectories,
    head_files,
    joined,
    object_directories,
    ref_directories,
)
from mulligan.workspace.capture.ignore import Rules
from mulligan.workspace.capture.index import TIMESTAMP_GRAIN_NS
from mulligan.workspace.capture.scan import Changes, Scan

RETRY_DELAYS_SECONDS = (0.0, 0.005, 0.02, 0.06)
"""Seconds to wait before each further look: a mass rename may be over by then.

The list is short, because a program that never pauses must not block a capture.
"""

MAX_REF_LISTINGS = 8
"""How often refs are listed again because HEAD was replaced meanwhile."""

MAX_PACK_LISTINGS = 8
"""How often packs are listed again because they were replaced while being read."""

DrainNames = Callable[[], Collection[bytes] | None]
"""Returns the directories in which names have changed so far, or None if any may have."""


class Rescan:
    """Capture what a scan found, and then what moved in the meantime."""

    def __init__(
        self,
        root: bytes,
        rules: Rules,
        capture: Capture,
        drain: DrainNames | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._root = root
        self._rules = rules
        self._capture = capture
        self._drain = drain
        self._sleep = sleep
        self._fresh_from = 0
        self._has_moved = False

    def run(self, changes: Changes, taken: int) -> None:
        """Capture what a look that began at ``taken`` found, and then what moved since."""
        # Changes from here on cannot be trusted to be listed: the watcher's report is that old, and
        # two changes may have left the times as they were.
        self._fresh_from = taken - TIMESTAMP_GRAIN_NS
        for pause in RETRY_DELAYS_SECONDS:
            may_have_moved = self._take(changes)
            if may_have_moved and pause:
                # Files that are being written: give the program a moment instead of racing with it.
                self._sleep(pause)
            found = self._moved(may_have_moved=may_have_moved)
            if found is None:
                return
            changes = found
        self._take(changes)
        repositories = GitDirectories(self._capture.directories)
        # Git directories are consistent regardless, because of the order in which they were read.
        self._capture.note_unsettled(
            path for path in changes.directories if repositories.of(path) is None
        )

    def _moved(self, *, may_have_moved: bool) -> Changes | None:
        """Look for names that changed since they were listed; None if none did."""
        drained = self._drain() if self._drain is not None else None
        known = self._capture.directories
        if drained is None and not may_have_moved:
            return None
        vanished_from = {path.rpartition(b"/")[0] for path in self._capture.vanished}
        paths = (
            list(known) if drained is None else sorted(vanished_from.union(drained) & known.keys())
        )
        changes = self._names(paths)
        return changes if changes.directories or changes.gone or changes.leaves else None

    def _take(self, changes: Changes) -> bool:
        """Capture what was found; return whether something may have moved meanwhile."""
        capture = self._capture
        repositories = GitDirectories(changes.directories, capture.directories)
        touched = repositories.of_all(changes.directories, [*changes.leaves, *changes.gone])
        objects = (
            [path for path in changes.leaves if repositories.is_object(path)] if touched else []
        )
        if objects:
            later = set(objects)
            changes.leaves = [path for path in changes.leaves if path not in later]
        capture.vanished.clear()
        self._has_moved = False
        self._apply(changes)
        if touched:
            self._take_refs(sorted(touched))
            self._take_objects(sorted(touched), objects, repositories)
        is_fresh = any(d.ctime >= self._fresh_from for d in changes.directories.values())
        return self._has_moved or bool(capture.vanished) or is_fresh

    def _apply(self, changes: Changes) -> None:
        self._capture.take(changes)
        self._has_moved |= changes.moved

    def _take_refs(self, touched: list[bytes]) -> None:
        """Capture the refs of git directories whose HEAD has been read."""
        known = self._capture.directories
        heads = set().union(*(head_files(home, known) for home in touched))
        # A HEAD that is still as it was read names a branch that was there when refs were listed.
        for _ in range(MAX_REF_LISTINGS):
            loose = [path for home in touched for path in ref_directories(home, known)]
            self._apply(self._names(loose))
            moved = self._replaced(heads)
            if not moved.leaves and not moved.gone:
                break
            self._apply(moved)
        # Loose refs before packed ones: git packs a ref before it deletes the loose file.
        self._apply(self._replaced({joined(home, PACKED_REFS) for home in touched}))

    def _take_objects(
        self, touched: list[bytes], leaves: list[bytes], repositories: GitDirectories
    ) -> None:
        """Capture the objects of git directories whose refs have been read."""
        capture = self._capture
        # Loose objects before packs: git packs an object before it deletes the loose file, so one
        # that is missing here is in a pack listed below.
        loose = [path for home in touched for path in object_directories(home, capture.directories)]
        packed = {path for path in leaves if repositories.is_packed(path)}
        self._apply(self._names(loose, set(leaves) - packed))
        # A repack may replace packs while they are read; list again until none vanished.
        for _ in range(MAX_PACK_LISTINGS):
            before = len(capture.vanished)
            self._apply(self._names([joined(home, PACKS) for home in touched], packed))
            if len(capture.vanished) == before:
                return
            packed = set()

    def _names(self, paths: Iterable[bytes], leaves: Iterable[bytes] = ()) -> Changes:
        """Look at the names in known directories; also read the given leaves."""
        changes = self._scan().names(paths)
        changes.leaves = list({*changes.leaves, *leaves})
        return changes

    def _replaced(self, files: set[bytes]) -> Changes:
        """Look at files that programs replace; those that are as they were read are left out."""
        changes = self._scan().paths(files)
        changes.leaves = [path for path in changes.leaves if not self._capture.is_current(path)]
        return changes

    def _scan(self) -> Scan:
        return Scan.again(self._root, self._capture.directories, self._rules, self._fresh_from)
