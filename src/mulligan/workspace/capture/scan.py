"""Scanning: find what differs between the workspace and the index, by stat alone."""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Collection, Iterable
from contextlib import suppress

import msgspec

from mulligan.workspace.beneath import Beneath
from mulligan.workspace.capture.ignore import IGNORED, Rules
from mulligan.workspace.capture.index import STAT, Index, Seen, SeenDirectory, packed_stat
from mulligan.workspace.capture.scan_worker import ScanWorker, Unchanged, start_scan_workers

_SPECIAL = {
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


MAX_DEPTH = 200
"""Maximum nesting of directories; trees and plans are processed recursively."""

MAX_PATH = 4095
"""The longest path in bytes that Linux resolves in one call."""

_CTIME = struct.Struct(">q")
"""The first field of a packed stat."""

_LATEST = b"\xff\xff"
"""Sorts after all packed stats."""

_NONE: frozenset[bytes] = frozenset()


class Changes(msgspec.Struct):
    """What a scan found; all paths are from the root.

    ``leaves`` are files and symlinks that are new or may have changed. ``directories`` are those
    that are new or changed, as they are now, without the leaves that are still to be read. ``gone``
    is what the index has and the workspace no longer has, or has as something else. ``linked`` are
    leaves that have other names too, with their ctime: a watcher should follow them, plus those
    that are found when they are captured because nothing was known of them before. ``looked_in``
    are the directories in which single paths were looked at; None after a full scan. ``moved`` is
    true if names vanished during the scan.
    """

    leaves: list[bytes]
    directories: dict[bytes, SeenDirectory]
    gone: list[bytes]
    linked: dict[bytes, int]
    looked_in: set[bytes] | None = None
    moved: bool = False


class Scan:
    """One comparison of a workspace with an index; only names and stats are read."""

    def __init__(self, root: bytes, index: Index | None, rules: Rules) -> None:
        self._prefix = root + b"/"
        self._beneath = Beneath(root)
        self._known = index.directories if index else {}
        self._entries = index.files + len(index.directories) if index else 0
        self._fresh_from = max(index.fresh_from, 0) if index else 0
        self._fresh_stats = _CTIME.pack(self._fresh_from)
        self._rules = rules
        self._same_rules = index is not None and index.rules == rules.identity
        self._newly_linked: set[int] = set()
        self.changes = Changes([], {}, [], {})

    @classmethod
    def again(
        cls, root: bytes, known: dict[bytes, SeenDirectory], rules: Rules, fresh_from: int
    ) -> Scan:
        """Return a further look during a capture, at directories listed from a time on.

        Files already captured are taken as they are: only names are compared.
        """
        scan = cls(root, None, rules)
        scan._known, scan._same_rules, scan._fresh_from = known, True, fresh_from
        scan._fresh_stats = _LATEST
        return scan

    def everything(self) -> Changes:
        """Scan the whole workspace, with worker processes if it is large."""
        with self._beneath:
            self._go_on(*self._together())
        return self.changes

    def _together(self) -> tuple[list[bytes], Unchanged]:
        """Scan everything not given to workers; return their directories and their results."""
        workers = self._workers()
        try:
            elsewhere = {path for worker in workers for path in worker.paths}
            # Scan our own share while the workers run; wait for them only afterwards.
            met = self._below([b""], elsewhere)
            unchanged = Unchanged()
            for worker in workers:
                worker.report(unchanged)
        finally:
            for worker in workers:
                worker.close()
        return met, unchanged

    def paths(self, paths: set[bytes], renewed: set[bytes] | frozenset[bytes] = _NONE) -> Changes:
        """Scan these paths, and everything below those in ``renewed`` or not in the index."""
        if not self._known:
            return self.everything()
        settled = None
        self.changes.looked_in = {path.rpartition(b"/")[0] for path in paths | renewed}
        with self._beneath:
            for path in sorted(paths | renewed, key=_parts):
                if settled is not None and path.startswith(settled):
                    continue
                if not self._look(path, whole=path in renewed):
                    settled = path + b"/" if path else b""
        # A new link changes the ctime of all names of a file, and only one of them was reported.
        if self._newly_linked:
            self._other_names(self._newly_linked)
        return self.changes

    def names(self, paths: Iterable[bytes]) -> Changes:
        """Compare the names in known directories, and scan below new ones."""
        self.changes.looked_in = set()
        with self._beneath:
            for path in paths:
                if path in self._known:
                    self.changes.looked_in.add(path)
                    self._names_in(path)
        return self.changes

    def _names_in(self, path: bytes) -> None:
        """List a directory if it may have changed, and scan below the new directories in it."""
        known, changes = self._known[path], self.changes
        with suppress(OSError):
            # A time within the clock's grain proves nothing: a second change in the same grain
            # would not move it.
            is_old = known.ctime < self._fresh_from
            is_same = _is_listed(os.lstat(self._prefix + path), known)
            if is_old and is_same:
                return
        found = len(changes.leaves), len(changes.gone)
        new = [child for child in self._directory(path) if child not in self._known]
        self._below(new)
        now = changes.directories.get(path)
        if now is None or (len(changes.leaves), len(changes.gone)) != found:
            return
        # A directory that is still unreadable ends up in its parent's ``left_out`` again.
        if changes.directories.keys().isdisjoint(new) and _names(now) == _names(known):
            del changes.directories[path]

    def _workers(self) -> list[ScanWorker]:
        if not self._same_rules:
            return []
        return start_scan_workers(self._prefix, self._known, self._fresh_from, self._entries)

    def _below(self, pending: list[bytes], elsewhere: Collection[bytes] = _NONE) -> list[bytes]:
        """Scan directories and below; return those assigned to workers, without entering them."""
        met = []
        while pending:
            path = pending.pop()
            if path in elsewhere:
                met.append(path)
            else:
                pending += self._directory(path)
        return met

    def _go_on(self, pending: list[bytes], unchanged: Unchanged) -> None:
        """Continue where workers have looked: skip what is unchanged and scan the rest."""
        self.changes.linked |= unchanged.linked
        same, known = unchanged.paths, self._known
        while pending:
            path = pending.pop()
            pending += _children(path, known[path]) if path in same else self._directory(path)

    def _directory(self, path: bytes) -> Collection[bytes]:
        """Scan a directory and return the directories in it."""
        known = self._known.get(path)
        try:
            # If a symlink led here, the stat differs from the known one.
            if known is not None and self._is_same(os.lstat(self._prefix + path), known):
                self._leaves(path, known)
                return _children(path, known)
            self._check_depth(path)
            now = self._listed(path, known)
        except (FileNotFoundError, NotADirectoryError):
            self.changes.moved = True  # it vanished during the scan
            self._without(path)
            return ()
        except OSError as error:
            if not path:
                raise
            holder = self._without(path)
            if holder is not None:
                holder.left_out[path.rpartition(b"/")[2]] = _unreadable(error)
            return ()
        self.changes.directories[path] = now
        return _children(path, now)

    def _check_depth(self, path: bytes) -> None:
        if path.count(b"/") >= MAX_DEPTH:
            raise OSError(errno.ENAMETOOLONG, f"it lies more than {MAX_DEPTH} directories deep")
        check_length(self._prefix + path)

    def _without(self, path: bytes) -> SeenDirectory | None:
        """Record that a directory is gone or unreadable; return its parent."""
        if path in self._known:
            self.changes.gone.append(path)
        parent, _, name = path.rpartition(b"/")
        holder = self.changes.directories.get(parent) or self._known.get(parent)
        if holder is not None:
            holder.directories.pop(name, None)
            holder.invalidate()
        return holder

    def _is_same(self, status: os.stat_result, known: SeenDirectory) -> bool:
        return (
            _is_listed(status, known)
            and known.ctime < self._fresh_from
            and self._same_rules
            and not (known.left_out and _may_be_readable(known))
        )

    def _leaves(self, path: bytes, known: SeenDirectory) -> None:
        """Compare the leaves of a directory whose names have not changed."""
        # A scan spends almost all of its time here, hence the local names and packed stats.
        lstat, pack, fresh, changes = os.lstat, STAT.pack, self._fresh_stats, self.changes
        base = path + b"/" if path else b""
        start = self._prefix + base
        for name, seen in known.leaves.items():
            try:
                now = lstat(start + name)
                same = seen.stat == pack(now.st_ctime_ns, now.st_mtime_ns, now.st_size, now.st_ino)
            except (FileNotFoundError, NotADirectoryError):
                changes.gone.append(base + name)
                changes.moved = True
                continue
            except (OSError, struct.error):
                changes.leaves.append(base + name)  # reading it reports the error
                continue
            if now.st_nlink > 1:
                self._is_linked(base + name, now, seen)
            if not same or seen.stat >= fresh:
                changes.leaves.append(base + name)

    def _listed(self, path: bytes, known: SeenDirectory | None) -> SeenDirectory:
        """List a directory and compare it with what was known of it."""
        handle = self._beneath.renewed(path)
        now = seen_directory(os.fstat(handle))
        base = path + b"/" if path else b""
        leaves: list[bytes] = []
        encoded = os.fsencode  # scandir on a handle returns names as text
        with os.scandir(handle) as listing:
            for entry in listing:
                name = encoded(entry.name)
                try:
                    if not self._kept(base, name, entry, now):
                        continue
                    # In an unknown directory, one stat is enough to see whether its entries are
                    # accessible.
                    if self._known or not leaves:
                        self._leaf(base, name, entry.stat(follow_symlinks=False), now, known)
                    else:
                        self.changes.leaves.append(base + name)
                    leaves.append(name)
                except FileNotFoundError:
                    now.invalidate()  # it vanished during the scan
                    self.changes.moved = True
                except PermissionError:
                    raise  # it applies to everything in the directory
                except OSError as error:
                    now.left_out[name] = _unreadable(error)
        if known is not None:
            self.changes.gone += [base + name for name in known.leaves.keys() - set(leaves)]
            self.changes.gone += [
                base + name for name in known.directories.keys() - now.directories
            ]
        return now

    def _kept(self, base: bytes, name: bytes, entry: os.DirEntry[str], now: SeenDirectory) -> bool:
        """Whether a directory entry is a leaf to look at; anything else is recorded right away."""
        is_directory = entry.is_dir(follow_symlinks=False)
        rule = self._rules.rule(base + name, name, is_directory=is_directory)
        if rule is not None:
            now.left_out[name] = IGNORED + rule
        elif is_directory:
            now.directories[name] = None
        elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
            return True
        else:
            special = _special(entry.stat(follow_symlinks=False))
            if special is None:
                return True  # replaced by a file during the scan
            now.left_out[name] = special
        return False

    def _leaf(
        self,
        base: bytes,
        name: bytes,
        status: os.stat_result,
        now: SeenDirectory,
        known: SeenDirectory | None,
    ) -> None:
        """Carry over what is known of a leaf, or record that it must be read."""
        seen = known.leaves.get(name) if known is not None else None
        if status.st_nlink > 1:
            self._is_linked(base + name, status, seen)
        if seen is not None and self._is_unchanged(status, seen):
            now.leaves[name] = seen
        else:
            self.changes.leaves.append(base + name)

    def _is_unchanged(self, status: os.stat_result, seen: Seen) -> bool:
        if self._fresh_stats is _LATEST and seen.ino == status.st_ino:
            # It was read just now. A program that keeps writing to it moves no name, and the next
            # capture finds its changes: the index still has the stat of the reading.
            return True
        return seen.stat == packed_stat(status) and seen.stat < self._fresh_stats

    def _look(self, path: bytes, *, whole: bool) -> bool:
        """Look at one path; return whether it is a known directory whose content stays valid."""
        parent, _, name = path.rpartition(b"/")
        known, holder = self._known.get(path), self._known.get(parent)
        if holder is None:
            return False  # its parent is left out
        try:
            status = self._beneath.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            holder.left_out.pop(name, None)
            if known is not None or name in holder.leaves:
                self.changes.gone.append(path)
            return False
        except PermissionError:
            return False  # its parent just became unreadable; the next scan finds that
        except OSError as error:
            if known is not None or name in holder.leaves:
                self.changes.gone.append(path)
            holder.left_out[name] = _unreadable(error)
            return False
        if stat.S_ISDIR(status.st_mode):
            if known is not None and not whole and not _differ_in_access(status, known):
                self._attributes(path, status, known)
                return True
            self._new_directory(path, name, holder, is_known=known is not None)
        else:
            self._new_leaf(path, name, status, holder, was_directory=known is not None)
        return False

    def _attributes(self, path: bytes, status: os.stat_result, known: SeenDirectory) -> None:
        """Update the attributes of a directory that is still there."""
        known.ino, known.mode, known.mtime = status.st_ino, status.st_mode, status.st_mtime_ns
        if known.ctime:  # zero forces a listing; keep it until then
            known.ctime = status.st_ctime_ns
        self.changes.directories[path] = known

    def _new_directory(
        self, path: bytes, name: bytes, holder: SeenDirectory, *, is_known: bool
    ) -> None:
        """Scan a directory and everything below it, at a path where there may have been another."""
        rule = self._rules.rule(path, name, is_directory=True) if path else None
        if name in holder.leaves or (rule is not None and is_known):
            self.changes.gone.append(path)
        holder.left_out.pop(name, None)
        if rule is None:
            self._below([path])
        else:
            holder.left_out[name] = IGNORED + rule

    def _new_leaf(
        self,
        path: bytes,
        name: bytes,
        status: os.stat_result,
        holder: SeenDirectory,
        *,
        was_directory: bool,
    ) -> None:
        """Record a path that is not a directory."""
        rule = self._rules.rule(path, name, is_directory=False)
        reason = IGNORED + rule if rule is not None else _special(status)
        if was_directory or (reason is not None and name in holder.leaves):
            self.changes.gone.append(path)
        if reason is not None:
            holder.left_out[name] = reason
            return
        self.changes.leaves.append(path)
        if status.st_nlink > 1:
            self._is_linked(path, status, holder.leaves.get(name))

    def _is_linked(self, path: bytes, status: os.stat_result, seen: Seen | None) -> None:
        self.changes.linked[path] = status.st_ctime_ns
        if seen is None or seen.ino != status.st_ino:
            self._newly_linked.add(status.st_ino)

    def _other_names(self, inodes: set[int]) -> None:
        """Find files that were known by one name only and now have another."""
        for directory, known in self._known.items():
            base = directory + b"/" if directory else b""
            for name in [n for n, seen in known.leaves.items() if seen.ino in inodes]:
                path = base + name
                try:
                    status = os.lstat(self._prefix + path)
                except OSError:
                    continue  # gone; reported under its own name
                if status.st_ino in inodes and path not in self.changes.linked:
                    self.changes.linked[path] = status.st_ctime_ns
                    self.changes.leaves.append(path)


def _parts(path: bytes) -> bytes:
    """Return a sort key that places everything below a directory directly after it."""
    return path.replace(b"/", b"\0")


def _differ_in_access(status: os.stat_result, known: SeenDirectory) -> bool:
    """Whether the content of a directory may have become readable or unreadable."""
    return (status.st_mode ^ known.mode) & 0o555 != 0


def check_length(path: bytes) -> None:
    """Refuse a path that other programs, and a later scan, could not reach."""
    if len(path) > MAX_PATH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))


def _unreadable(error: OSError) -> str:
    return f"it cannot be read: {error.strerror}"


def _special(status: os.stat_result) -> str | None:
    """Return a description of something that is neither file nor symlink."""
    if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
        return None
    return f"it is {_SPECIAL.get(stat.S_IFMT(status.st_mode), 'of an unknown kind')}"


def seen_directory(status: os.stat_result) -> SeenDirectory:
    """Return a directory of which only its own stat is known."""
    return SeenDirectory(
        status.st_ino, status.st_ctime_ns, status.st_mtime_ns, status.st_mode, {}, {}, {}
    )


def _may_be_readable(directory: SeenDirectory) -> bool:
    """Whether something unreadable may have become readable, which its directory does not show."""
    return not all(reason.startswith(IGNORED) for reason in directory.left_out.values())


def _is_listed(status: os.stat_result, known: SeenDirectory) -> bool:
    """Whether a directory is the one that was listed, with no name changed since."""
    return (
        status.st_mtime_ns == known.mtime
        and status.st_ctime_ns == known.ctime
        and status.st_ino == known.ino
    )


def _names(directory: SeenDirectory) -> tuple[object, ...]:
    """Return the subdirectories, what is left out, and when the directory was listed."""
    times = directory.ctime, directory.mtime, directory.ino
    return (*times, directory.directories.keys(), directory.left_out)


def _children(path: bytes, directory: SeenDirectory) -> Collection[bytes]:
    if not directory.directories:
        return ()  # the usual case
    base = path + b"/" if path else b""
    return [base + name for name in directory.directories]
