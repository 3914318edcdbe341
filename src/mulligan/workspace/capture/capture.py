"""Capture the workspace as a tree of objects, at a cost proportional to what changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Set
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path

import msgspec

from mulligan.clock import SystemClock
from mulligan.errors import WorkspaceNeeded
from mulligan.model import Changing, Coverage, Digest, LeftOut, ObjectKind
from mulligan.objects.protocol import Bundle
from mulligan.workspace.beneath import Beneath
from mulligan.workspace.capture.edits import fits_in_patch, patched, touch
from mulligan.workspace.capture.file_copy import FileCopies
from mulligan.workspace.capture.file_reader import (
    Read,
    TooLarge,
    Unreadable,
    read_leaf,
    read_snapshot,
    read_xattrs,
)
from mulligan.workspace.capture.ignore import Rules
from mulligan.workspace.capture.index import (
    VERSION,
    Edits,
    Index,
    Seen,
    SeenDirectory,
    packed_stat,
    root_text,
    unsettled_stat,
)
from mulligan.workspace.capture.limits import CaptureLimits
from mulligan.workspace.capture.progress import CountingSink, Progress, untold
from mulligan.workspace.capture.scan import Changes, check_length
from mulligan.workspace.capture.snapshot import IN_SNAPSHOT, SnapshotFailed, Snapshots
from mulligan.workspace.capture.tree import Changed, stored_entry, stored_tree
from mulligan.workspace.entries import Directory, File

_NAMES_MOVED = "files in it came, went or were renamed while it was captured"
_NEVER_STILL = "it kept changing while it was read"


class Captured(msgspec.Struct, frozen=True):
    """A captured workspace: the digest of its tree, its coverage, and the index for the next."""

    tree: Digest
    coverage: Coverage
    index: Index


class Capture:
    """Bring a tree up to date with the workspace, reading only what a scan found changed."""

    def __init__(
        self,
        root: Path,
        bundle: Bundle,
        index: Index | None,
        limits: CaptureLimits,
        progress: Progress = untold,
        *,
        copies: FileCopies | None = None,
        patches: bool = True,
    ) -> None:
        self._root = root
        self._prefix = os.fsencode(root) + b"/"
        self._beneath = Beneath(os.fsencode(root))
        self._bundle = bundle
        self._limits = limits
        self._files_read = CountingSink(bundle, progress)
        self._copies = copies or FileCopies(None, SystemClock())
        self._snapshots = Snapshots(root, limits.snapshot)
        self._backed_up: set[bytes] = set()
        self._not_backed_up: set[bytes] = set()
        self._problems: list[Changing] = []
        self._changing: dict[bytes, Changing] = {}
        self._directories = index.directories if index else {}
        self._files, self._bytes = (index.files, index.size) if index else (0, 0)
        self._left_out = index.left_out if index else {}
        self._named = index.listed if index else None
        self._nodes = index.nodes if index else {}
        self._edits = index.edits if index else None
        self._linked: dict[bytes, int] = {}
        # Without patches, too, the edits are needed: a full tree has all names since its base.
        self._is_little = patches
        self._listed: dict[bytes, SeenDirectory] = {}
        self._changed: Changed = {}
        self._looked_in: set[bytes] | None = set()
        self.vanished: set[bytes] = set()

    def run(self, changes: Changes, rules: Rules, taken: int) -> Captured:
        """Apply what a scan found and return the captured workspace; see ``Changes.linked``."""
        self.take(changes)
        return self.finish(rules, taken)

    @property
    def directories(self) -> dict[bytes, SeenDirectory]:
        """All directories as captured so far."""
        return self._directories

    @property
    def linked(self) -> dict[bytes, int]:
        """Leaves that have other names too; see ``Changes.linked``."""
        return self._linked

    def take(self, changes: Changes) -> None:
        """Apply what a scan found; more may follow. Leaves that vanished are in ``vanished``."""
        self._linked |= changes.linked
        if self._snapshots.is_used:
            changes.leaves += self._databases(changes.leaves)
        changed = _changed_names(changes)
        # Before any directory is brought up to date: the entries that the patch replaces are read
        # from the index as it was at the last capture.
        if self._is_little and self._edits is not None:
            self._is_little = fits_in_patch(self._edits, changed, self._directories)
        # Removals first: a directory may have taken the path of a file, or the reverse.
        for path in changes.gone:
            self._forget(path)
        new = [path for path in changes.directories if path not in self._directories]
        for path, directory in changes.directories.items():
            self._replace(path, directory)
        # Parents are in place only after all directories were replaced.
        for path in new:
            self._name_in_parent(path)
        if b"" not in self._directories:
            raise WorkspaceNeeded(
                f"The workspace {self._root} is no longer a directory.",
                hint="Nothing was captured. Recreate it, or open the session with workspace=DIR.",
            )
        # Handles of directories are shared within one pass and closed after it; a later pass may
        # meet other directories at the same paths.
        with self._beneath:
            self._read_leaves(changes.leaves)
        self._listed.update(changes.directories)
        for path, names in changed.items():
            self._changed.setdefault(path, set()).update(names)
        if changes.looked_in is None:
            self._looked_in = None
        elif self._looked_in is not None:
            self._looked_in |= changes.looked_in

    def is_current(self, path: bytes) -> bool:
        """Whether a leaf that was read is still the same, by its stat."""
        parent, _, name = path.rpartition(b"/")
        holder = self._directories.get(parent)
        seen = holder.leaves.get(name) if holder is not None else None
        try:
            return seen is not None and seen.stat == packed_stat(os.lstat(self._prefix + path))
        except OSError:
            return False

    def note(self, problems: Iterable[str]) -> None:
        """Record problems that occurred around the capture."""
        self._problems += [Changing(".", problem, torn=False) for problem in problems]

    def note_unsettled(self, directories: Iterable[bytes]) -> None:
        """Report directories whose names kept changing; the next capture lists them again."""
        for path in directories:
            if path in self._directories:
                self._directories[path].invalidate()
                self._changing[path] = Changing(_shown(path) or ".", _NAMES_MOVED, torn=True)

    def finish(self, rules: Rules, taken: int) -> Captured:
        """Store the tree and return the captured workspace."""
        with self._beneath:
            for path in self._listed:
                directory = self._directories.get(path)
                if directory is not None:
                    directory.entry = self._attributes(path, directory)
        # After the attributes of all directories: the tree includes them.
        tree, edits = self._stored(self._changed, self._is_little and self._edits is not None)
        self._note_left_out(self._looked_in, self._changed.keys())
        coverage = self._coverage()
        index = Index(
            version=VERSION,
            root=root_text(self._root),
            rules=rules.identity,
            taken=taken,
            tree=tree,
            directories=self._directories,
            files=self._files,
            size=self._bytes,
            left_out=self._left_out,
            edits=edits,
            nodes=self._nodes,
            listed=coverage.left_out,
        )
        return Captured(tree, coverage, index)

    def _stored(self, changed: Changed, is_little: bool) -> tuple[Digest, Edits]:
        """Store the tree: as a patch while little of it changed, otherwise in full."""
        if self._edits is not None:
            touch(self._edits, changed)
            if is_little:
                tree = patched(self._edits, changed, self._directories, self._put)
                if tree is not None:
                    return tree, self._edits
            # A full tree needs all names since its base, not only those of this capture: the
            # directories in the index have no current references since then.
            changed = self._edits.touched
        tree = stored_tree(self._directories, changed, self._put, self._nodes)
        return tree, Edits(tree)

    def _put(self, data: bytes) -> Digest:
        return self._bundle.put(ObjectKind.VALUE, data)

    def _replace(self, path: bytes, directory: SeenDirectory) -> None:
        """Put a directory, as it is now, into the index."""
        known = self._directories.get(path)
        if known is not directory:
            if known is not None:
                self._count(known, -1)
                directory.reference = known.reference
                # Files that are read again keep their share of the budget until then.
                directory.leaves.update(
                    {n: s for n, s in known.leaves.items() if n not in directory.leaves}
                )
            self._count(directory, 1)
            self._directories[path] = directory

    def _count(self, directory: SeenDirectory, sign: int) -> None:
        self._files += sign * len(directory.leaves)
        self._bytes += sign * sum(seen.room for seen in directory.leaves.values())

    def _keep_leaf(self, directory: SeenDirectory, name: bytes, seen: Seen | None) -> None:
        """Set what is known of a leaf, or None if it is gone."""
        before = directory.leaves.pop(name, None)
        if before is not None:
            self._files -= 1
            self._bytes -= before.room
        if seen is not None:
            self._files += 1
            self._bytes += seen.room
            directory.leaves[name] = seen

    def _forget(self, path: bytes) -> None:
        """Remove a path and everything below it from the index and the tree."""
        parent, _, name = path.rpartition(b"/")
        holder = self._directories.get(parent)
        if holder is not None:
            self._keep_leaf(holder, name, None)
            holder.directories.pop(name, None)
            # Its stat may be unchanged within the resolution of timestamps, so the next capture
            # lists it again.
            holder.invalidate()
        pending = [path] if path in self._directories else []
        while pending:
            gone = pending.pop()
            directory = self._directories.pop(gone, None)
            self._nodes.pop(gone, None)
            if self._left_out.pop(gone, None) is not None:
                self._named = None
            if directory is not None:
                self._count(directory, -1)
                pending += [gone + b"/" + child for child in directory.directories]

    def _name_in_parent(self, path: bytes) -> None:
        """Add a new directory to its parent, which may not have been listed."""
        parent, _, name = path.rpartition(b"/")
        if path and parent in self._directories:
            self._directories[parent].directories[name] = None

    def _read_leaves(self, leaves: list[bytes]) -> None:
        """Read the leaves in sorted order, so that the budget always ends at the same file."""
        for path in sorted(leaves):
            self._files_read.begin_file()
            parent, _, name = path.rpartition(b"/")
            directory = self._directories.get(parent)
            if directory is not None:  # it may have vanished during the scan
                self._read(path, name, directory)

    def _read(self, path: bytes, name: bytes, directory: SeenDirectory) -> None:
        """Read one leaf into the index, or record why it is left out."""
        # What was known about the leaf is void once it is read again.
        directory.left_out.pop(name, None)
        self._changing.pop(path, None)
        room = self._room(directory.leaves.get(name))
        try:
            check_length(self._prefix + path)
            # Through a handle, never by path: a parent swapped for a symlink must not lead outside.
            parent = self._beneath.directory(path.rpartition(b"/")[0])
            # A side file sorts after its database, so the snapshot has been taken by now.
            if self._backed_up and self._is_in_snapshot(path, name, directory):
                return
            read = self._read_as_set(parent, path, name, room)
        except (FileNotFoundError, NotADirectoryError):
            self._keep_leaf(directory, name, None)
            # Its listing is out of date, so the next scan lists it again instead of trusting its
            # time.
            directory.invalidate()
            self.vanished.add(path)
        except (TooLarge, Unreadable, OSError) as error:
            self._keep_leaf(directory, name, None)
            directory.left_out[name] = self._reason(error)
            # A left-out file may change through another name, and fit then.
            with suppress(OSError):
                self._note_linked(path, self._beneath.lstat(path))
        else:
            entry = stored_entry(read.leaf, self._put)
            self._keep_leaf(directory, name, _seen(read, entry))
            self._note_linked(path, read.stat)
            if read.torn and path not in self._changing:
                self._changing[path] = Changing(_shown(path), _NEVER_STILL, torn=True)

    def _read_as_set(self, directory: int, path: bytes, name: bytes, room: int) -> Read:
        """Read a leaf, from a snapshot if the configuration asks for one."""
        if not self._snapshots.is_used or not self._snapshots.has(path):
            return read_leaf(directory, name, self._files_read, room, self._copies)
        plain = partial(read_leaf, directory, name, self._files_read, room, self._copies)
        # Before the snapshot: if the file changes meanwhile, its new stat differs and the next
        # capture reads it again.
        before = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISREG(before.st_mode):
            return plain()
        try:
            with self._snapshots.take(path, directory) as snapshot:
                if snapshot is None:
                    return plain()
                read = read_snapshot(directory, name, snapshot, before, self._files_read, room)
        except SnapshotFailed as error:
            # Recorded, so that the side files of this database do not cause another attempt in this
            # capture.
            self._not_backed_up.add(path)
            read = plain()
            reason = f"it was read directly, because no snapshot could be taken: {error}"
            self._changing[path] = Changing(_shown(path), reason, read.torn)
        else:
            self._backed_up.add(path)
        return read

    def _is_in_snapshot(self, path: bytes, name: bytes, directory: SeenDirectory) -> bool:
        """Leave out a side file of a SQLite database whose snapshot already contains it."""
        database = self._snapshots.database_of(path)
        if database is None or database not in self._backed_up:
            return False
        self._keep_leaf(directory, name, None)
        directory.left_out[name] = IN_SNAPSHOT + _shown(database)
        return True

    def _databases(self, leaves: list[bytes]) -> set[bytes]:
        """Return databases that did not change themselves but whose side files did.

        One snapshot per capture is enough, and so is one failed attempt: a program at work creates
        and deletes side files all the time.
        """
        found = {database for path in leaves if (database := self._snapshots.database_of(path))}
        known = self._backed_up.union(self._not_backed_up, leaves)
        return {path for path in found - known if self._has(path)}

    def _note_linked(self, path: bytes, status: os.stat_result) -> None:
        if status.st_nlink > 1:
            self._linked[path] = status.st_ctime_ns

    def _room(self, known: Seen | None) -> int:
        """Return how large a file may be that replaces what is known."""
        others = self._bytes - (known.room if known else 0)
        return min(self._limits.max_file_size, self._limits.budget - others)

    def _reason(self, error: Exception) -> str:
        if isinstance(error, OSError):
            return f"it cannot be read: {error.strerror}"
        if not isinstance(error, TooLarge):
            return str(error)
        if error.size > self._limits.max_file_size:
            return f"it is larger than max_file_size, {self._limits.max_file_size} bytes"
        return f"the budget of {self._limits.budget} bytes has no room for it"

    def _attributes(self, path: bytes, directory: SeenDirectory) -> bytes:
        xattrs = None
        with suppress(OSError):  # gone or unreadable since it was listed
            xattrs = read_xattrs(self._beneath.directory(path))
        entry = Directory(stat.S_IMODE(directory.mode), directory.mtime, xattrs)
        return stored_entry(entry, self._put)

    def _note_left_out(self, looked_in: set[bytes] | None, changed: Set[bytes]) -> None:
        """Update what is left out, in the directories where it may have changed."""
        where = self._directories.keys() if looked_in is None else looked_in | changed
        for path in where:
            directory = self._directories.get(path)
            found = _left_out(path, directory) if directory and directory.left_out else None
            if found == self._left_out.get(path):
                continue
            self._named = None
            if found is None:
                del self._left_out[path]
            else:
                self._left_out[path] = found

    def _has(self, path: bytes) -> bool:
        """Whether a path is captured."""
        parent, _, name = path.rpartition(b"/")
        holder = self._directories.get(parent)
        return path in self._directories or (holder is not None and name in holder.leaves)

    def _coverage(self) -> Coverage:
        changing = [found for path, found in self._changing.items() if self._has(path)]
        # Reusing the identical list signals that nothing in it changed; see ``Checkpointer``.
        if self._named is None:
            self._named = sorted(chain.from_iterable(self._left_out.values()))
        return Coverage(
            files=self._files,
            directories=len(self._directories),
            bytes=self._bytes,
            left_out=self._named,
            root=root_text(self._root),
            changing=sorted(changing + self._problems),
        )


def _left_out(path: bytes, directory: SeenDirectory) -> list[LeftOut]:
    base = path + b"/" if path else b""
    return [LeftOut(_shown(base + name), rule) for name, rule in directory.left_out.items()]


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")


def _seen(read: Read, entry: bytes) -> Seen:
    room = read.leaf.size if isinstance(read.leaf, File) else 0
    # A leaf that changed while it was read gets a stat that never matches: the next capture reads
    # it again, and no restore mistakes it for what the checkpoint holds.
    stat_of = packed_stat if read.holds else unsettled_stat
    return Seen(stat_of(read.stat), room, entry)


def _changed_names(changes: Changes) -> Changed:
    """Return the names to store again, by directory."""
    changed: Changed = {path: {b""} for path in (b"", *changes.directories)}
    for path in chain(changes.leaves, changes.gone):
        parent, _, name = path.rpartition(b"/")
        changed.setdefault(parent, set()).add(name)
    return changed
