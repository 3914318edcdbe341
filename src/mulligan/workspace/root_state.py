"""What a process knows of a directory: shared by all sessions that have it as their workspace.

The index, the trees that it leads to and the watcher are expensive for a large directory, and do
not depend on the session: all sessions store the same objects in the same store. So there is one of
each for a directory. A patch of any session is then a patch to the same base.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet, WeakValueDictionary

from mulligan.workspace.capture.index import NOTHING_SYNCED, Index
from mulligan.workspace.watch.mapped import Mapped

if TYPE_CHECKING:
    from mulligan.workspace.watch.watcher import Drained, Watcher
    from mulligan.workspace.workspace import Workspace


class RootState:
    """The last capture of a directory, and the watcher that knows what changed since.

    It is read and changed under :meth:`lock`. A capture holds that from its first look at the files
    until its commit: before, the index refers to objects that the store may never get.
    """

    def __init__(self, root: Path) -> None:
        self.index: Index | None = None
        """The last capture that was committed."""
        self.epoch: object = None
        """The epoch of the pin under which that was; see ``Pin``."""
        self.captured: Index | None = None
        """A capture that is not committed yet."""
        self.damage = 0
        self.collections = 0
        self.loaded = False
        """Whether an index that another process saved was looked for."""
        self.watching = False
        """Whether a session has asked for a watcher."""
        self.watcher: Watcher | None = None
        self.carried_paths: set[bytes] = set()
        self.carried_renewed: set[bytes] = set()
        self.synced = NOTHING_SYNCED
        self.changes = 0
        """How often something changed, as far as it was looked for; each session compares it."""
        self.tokens: set[str] = set()
        self.mapped = Mapped(os.fsencode(root))
        self.users: WeakSet[Workspace] = WeakSet()
        """The workspaces that were not closed; the last one ends the watcher."""
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def drain(self) -> Drained | None:
        """Return what changed since the last drain; None if only a scan can tell."""
        drained = self.watcher.drain() if self.watcher is not None else None
        if drained is not None and (drained.paths or drained.renewed):
            self.changes += 1
        return drained

    def lock(self) -> threading.RLock:
        """Return the lock of this process; one inherited by a fork may be held forever.

        It is taken after the lock of a session's handle and those of the directory, and before the
        write lock of the journal. Reentrant: a restore captures, and then compares.
        """
        if self._pid != os.getpid():
            self._lock, self._pid = threading.RLock(), os.getpid()
        return self._lock


class RootStates:
    """The states of the directories that the sessions of a store have open, by their paths."""

    def __init__(self) -> None:
        # Weak: what no workspace uses any more is forgotten, with its watcher.
        self._states: WeakValueDictionary[Path, RootState] = WeakValueDictionary()

    def of(self, root: Path) -> RootState:
        """Return the state of a directory, by its real path."""
        # In one step: two threads may open the same directory.
        return self._states.setdefault(root, RootState(root))
