"""The workspace of a session: captured at a checkpoint, compared, and brought back."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from mulligan.document.document import MISSING, Document
from mulligan.engine import Engine
from mulligan.errors import DamageError, UnsafeWorkspace
from mulligan.failpoints import FailpointHook, ignore
from mulligan.layout import NAME, PATCHES
from mulligan.locate.git import guard
from mulligan.model import Digest, ObjectKind
from mulligan.objects.protocol import Bundle
from mulligan.workspace.capture.capture import Capture, Captured, CaptureLimits
from mulligan.workspace.capture.file_copy import FileCopies
from mulligan.workspace.capture.ignore import Rules
from mulligan.workspace.capture.index import Index, Seen, load_index, save_index
from mulligan.workspace.capture.patch import open_tree
from mulligan.workspace.capture.progress import Progress, untold
from mulligan.workspace.capture.rescan import Rescan
from mulligan.workspace.capture.scan import Changes, Scan
from mulligan.workspace.capture.snapshot import Snapshots, quiesced
from mulligan.workspace.checkout.reflink import ReflinkSource
from mulligan.workspace.entries import SELF, Directory, TreePath, decode_entry, from_name, to_name
from mulligan.workspace.file_handles import close_kept
from mulligan.workspace.handles import Handles
from mulligan.workspace.restore.apply import Apply
from mulligan.workspace.restore.caches import Caches
from mulligan.workspace.restore.content_check import rewritten
from mulligan.workspace.restore.fileops import Failure
from mulligan.workspace.restore.plan import TreeChange, tree_changes
from mulligan.workspace.restore.protect import ProtectedSplit, divide
from mulligan.workspace.restore.swap import token_of
from mulligan.workspace.watch.mapped import Mapped
from mulligan.workspace.watch.mounts import Mounts

if TYPE_CHECKING:
    from mulligan.workspace.watch.watcher import Drained, Watcher


class Workspace:
    """A directory whose files belong to a session."""

    def __init__(
        self,
        root: Path,
        engine: Engine,
        limits: CaptureLimits,
        failpoint: FailpointHook = ignore,
        progress: Progress = untold,
        stores: Collection[Path] = (),
    ) -> None:
        self.root = root
        self._stores = stores
        self._engine = engine
        self._limits = limits
        self._failpoint = failpoint
        self._progress = progress
        self._aside = FileCopies(engine.directory and engine.directory / "tmp", engine.clock)
        self._index: Index | None = None
        self._captured: Index | None = None
        self._loaded = False
        self._watching = False
        self._owed: set[bytes] = set()
        self._owed_whole: set[bytes] = set()
        self._watcher: Watcher | None = None
        self._tokens: set[str] = set()
        self._mapped = Mapped(os.fsencode(root))

    def watch(self) -> None:
        """Learn of changes as they happen, so that captures after the next one need no scan."""
        self._watching = True

    @property
    def unwatched(self) -> str | None:
        """Why changes are found by scans, or None while the watcher knows them."""
        return self._watcher.reason if self._watcher else "nobody asked for a watcher"

    def elsewhere(self, root: Path) -> Workspace:
        """Return the workspace of another directory under the same limits."""
        return Workspace(root, self._engine, self._limits, self._failpoint, stores=self._stores)

    def source(self) -> ReflinkSource | None:
        """Return the files as they were last captured by this process, to share bytes with."""
        return (
            ReflinkSource(os.fsencode(self.root), self._index) if self._index is not None else None
        )

    def capture(self, bundle: Bundle) -> Captured:
        """Bring the tree up to date with the files; its objects go into the bundle.

        What was seen only counts once the bundle is part of the store: call :meth:`accept` then,
        or :meth:`reset` when it does not become so.
        """
        self._guard_store()
        try:
            with quiesced(self.root, self._limits.snapshot) as problems:
                mapped = self._mapped.files()
                rules, taken, capture = self._taken(bundle, mapped)
            capture.note(problems)
            captured = capture.finish(rules, taken)
        except BaseException:
            self.reset()
            raise
        close_kept()
        self._captured = captured.index
        self._captured.mapped = dict.fromkeys(mapped)
        if self._watcher is not None:
            self._watcher.follow(capture.linked)
        return captured

    def _guard_store(self) -> None:
        """Guard a store inside its project: git may have come since it was opened."""
        store = self._engine.directory
        if store is not None and store.name == NAME and not self._engine.read_only:
            with suppress(OSError):  # a store without its guard is as good as any other
                guard(store)

    def _taken(self, bundle: Bundle, mapped: set[bytes]) -> tuple[Rules, int, Capture]:
        """Read everything that has changed, by which rules and from which time on.

        ``mapped`` are the files that programs have mapped now.
        """
        rules = Rules.read(self.root, self._is_draft, self._stores_within())
        taken = self._engine.clock.wall_ns()
        changes = self._changes(rules, mapped)
        # It is changed in place, and from then on refers to what the store may never have.
        index, self._index = self._index, None
        capture = Capture(
            self.root,
            bundle,
            index,
            self._limits,
            self._progress,
            aside=self._aside,
            patches=PATCHES in self._engine.features,
        )
        told = self._told if self._watcher is not None else None
        sleep = self._engine.clock.sleep
        Rescan(os.fsencode(self.root), rules, capture, told, sleep).run(changes, taken)
        return rules, taken, capture

    def accept(self, captured: Captured) -> None:
        """Go on from a capture, unless another one followed: its objects are in the store now."""
        if captured.index is self._captured:
            self._index, self._captured = self._captured, None

    def reset(self) -> None:
        """Forget what was seen: the next capture reads everything anew."""
        self._index, self._captured, self._loaded = None, None, True
        self._stop_watcher()

    def close(self) -> None:
        """Keep what was seen for the next process, and stop watching."""
        self._stop_watcher()
        self.save()

    def save(self) -> None:
        """Keep what was seen for the next process."""
        if self._index is not None and self._engine.directory is not None:
            save_index(self._index, self._index_file(self._engine.directory))

    def steps(
        self,
        before: Digest,
        after: Digest,
        only: list[TreePath] | None = None,
        bundle: Bundle | None = None,
    ) -> list[TreeChange]:
        """Return what differs between two captured trees; the bundle may hold parts of them."""
        index = self._index or self._captured
        edits = index.edits if index else None
        return tree_changes(self._document(bundle), before, after, only, edits)

    def has(self, tree: Digest, path: TreePath) -> bool:
        """Whether a path is in a captured tree, or in the directory now."""
        if ".." in path:
            return False
        if open_tree(self._document(), tree).find(path) is not MISSING:
            return True
        return os.path.lexists(os.fsencode(self.root) + b"/" + b"/".join(map(from_name, path)))

    def divide(self, steps: list[TreeChange], uncovered: Collection[str]) -> ProtectedSplit:
        """Divide steps into those to take and those that would touch what is left alone."""
        rules = Rules.read(self.root, stores=self._stores_within())
        return divide(os.fsencode(self.root), rules, steps, uncovered)

    def apply(
        self,
        steps: list[TreeChange],
        token: str,
        tree: Digest | None = None,
        caches: Caches | None = None,
        touch: Sequence[TreeChange] = (),
    ) -> list[Failure]:
        """Take the steps from the captured tree to another one; return what could not be done.

        What is not as it was when it was last captured is not touched. ``token`` is in the names
        of all drafts, so that ``remove_drafts`` knows them. ``tree`` is the other one when only
        parts of it are brought back: the directories that they are in get its times. ``caches``
        are removed on the way. What the steps of ``touch`` have changed gets the present time.
        """
        mtime = self._mtime
        if tree is not None:
            mtime = partial(_mtime_in, open_tree(self._document(), tree))
        root, objects, index = os.fsencode(self.root), self._engine.objects, self._index
        snapshots = Snapshots(self.root, self._limits.snapshot)
        apply = Apply(
            root,
            objects,
            mtime,
            known=None if index is None else self._seen,
            settled=0 if index is None or _in_memory(root) else index.settled_until,
            is_snapshot=lambda path: snapshots.is_used and snapshots.has(path),
            failpoint=self._failpoint,
            token=token,
            caches=caches,
        )
        return apply.run(steps, touch)

    def remove_left_drafts(self) -> None:
        """Remove the drafts that the last capture left out.

        Only for a restore, which is alone in the directory: they are of restores that have ended.
        """
        index = self._index or self._captured
        handles = Handles(os.fsencode(self.root))
        try:
            for path in index.left_out if index else ():
                parts = tuple(map(to_name, path.split(b"/"))) if path else ()
                names = index.directories[path].left_out if index else {}
                for name in filter(self._is_draft, names):
                    with suppress(OSError):  # it stays, and stays left out
                        os.unlink(name, dir_fd=handles.directory(parts))
        finally:
            handles.close()

    def _stores_within(self) -> list[bytes]:
        """Return the paths of stores in this directory: no restore may put a store back in time."""
        within = [place for place in self._stores if self.root in place.parents]
        return [os.fsencode(place.relative_to(self.root)) for place in within]

    def _is_draft(self, name: bytes) -> bool:
        """Whether a name is that of a draft of this store: some checkpoint has its token."""
        token = token_of(name)
        if token is None:
            return False
        if token in self._tokens:
            return True
        with self._engine.read() as view:
            if not view.checkpoints_by_id(token):
                return False  # nor is it remembered: it may become one
        self._tokens.add(token)
        return True

    def _seen(self, path: TreePath) -> Seen | None:
        return self._index.leaf(b"/".join(map(from_name, path))) if self._index else None

    def _mtime(self, path: TreePath) -> int | None:
        """Return the time of a directory as it was captured."""
        seen = self._index and self._index.directories.get(b"/".join(map(from_name, path)))
        return seen.mtime if seen else None

    def _changes(self, rules: Rules, mapped: set[bytes]) -> Changes:
        """Return what may have changed; ``mapped`` are the files that programs have mapped now."""
        if not self._loaded:
            self._index = self._saved_index()
            self._loaded = True
        root = os.fsencode(self.root)
        drained = self._drained(rules)
        if drained is None:
            if self._watching:
                self._stop_watcher()
                from mulligan.workspace.watch.watcher import (
                    Watcher,  # only long-lived processes watch
                )

                self._watcher = Watcher(root, rules)
                self._watcher.start()
            self._doubt_times(root, mapped)
            return Scan(root, self._index, rules).everything()
        paths = drained.paths | self._suspects(mapped)
        return Scan(root, self._index, rules).paths(paths, drained.renewed)

    def _suspects(self, mapped: set[bytes]) -> set[bytes]:
        """Return what may have changed without a trace: what is mapped, or was when it was read."""
        index = self._index
        return {path for path in mapped.union(index.mapped) if index.leaf(path)} if index else set()

    def _doubt_times(self, root: bytes, mapped: set[bytes]) -> None:
        """Have a scan read what may have changed without its times showing it.

        On filesystems in memory that is anything, so all bytes are compared.
        """
        if self._index is None:
            return
        changed = self._suspects(mapped)
        if places := _in_memory(root):
            document, objects = self._document(), self._engine.objects
            changed |= set(rewritten(root, self._index, places, document, objects))
        self._index.doubt(changed)

    def _drained(self, rules: Rules) -> Drained | None:
        """Return what the watcher knows, or None when only a scan can tell."""
        if self._watcher is None or self._index is None or self._index.rules != rules.identity:
            return None
        drained = self._watcher.drain()
        if drained is not None:
            drained.paths.update(self._owed)
            drained.renewed.update(self._owed_whole)
            self._owed, self._owed_whole = set(), set()
        return drained

    def _told(self) -> set[bytes] | None:
        """Return the paths that changed during a capture, or None if only a look can tell.

        They are looked at in the next capture as well: in this one only names count.
        """
        drained = self._watcher.drain() if self._watcher is not None else None
        if drained is None:
            return None
        self._owed |= drained.paths
        self._owed_whole |= drained.renewed
        return None if drained.renewed else drained.paths

    def _stop_watcher(self) -> None:
        self._owed, self._owed_whole = set(), set()
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def _saved_index(self) -> Index | None:
        """Return the index that another process left, if this store has what it refers to.

        A tree becomes part of the store in the same transaction as the objects below it, or in a
        later one. So a store that has the tree has everything that the index refers to, and a
        store that was put back to an earlier state has it not.
        """
        if self._engine.directory is None:
            return None
        found = load_index(self._index_file(self._engine.directory), self.root)
        if found is None:
            return None
        try:
            for tree in {found.tree, found.edits.base}:
                self._engine.load(tree)
        except DamageError:
            return None  # all that is captured from now on would need them
        return found

    def _index_file(self, directory: Path) -> Path:
        name = blake3(os.fsencode(self.root)).hexdigest(length=8)
        return directory / "tmp" / f"index-{name}"

    def _document(self, bundle: Bundle | None = None) -> Document:
        """Return a document with nothing in it over the objects of the store, or of a bundle."""
        if bundle is None:
            return Document({}, self._engine.load)
        return Document({}, lambda digest: bundle.get(ObjectKind.VALUE, digest))


def _in_memory(root: bytes) -> list[bytes]:
    """Return where, from the root, times do not show writes through mappings."""
    try:
        with closing(Mounts(root)) as mounts:
            return mounts.in_memory()
    except OSError:
        return []  # a system that tells nothing of its mounts


def _mtime_in(document: Document, path: TreePath) -> int | None:
    """Return the time of a directory in a tree."""
    found = document.find((*path, SELF))
    entry = None if found is MISSING else decode_entry(document.plain(found))
    return entry.mtime if isinstance(entry, Directory) else None


def _holds_more(root: Path, store: Path) -> bool:
    """Whether a store is somewhere below a directory, and not the one of this directory."""
    return root in store.parents and (root != store.parent or store.name != NAME)


def check_root(root: Path, store: Path | None, home: Path, *, force: bool) -> Path:
    """Return the real path of a workspace, or refuse one that holds far more than a project."""
    real = root.resolve(strict=True)
    if not real.is_dir():
        raise UnsafeWorkspace(f"{root} is not a directory.", hint="Name a directory.")
    reason = None
    if real == Path(real.anchor):
        reason = "it is the root of the filesystem"
    elif real == home.resolve():
        reason = "it is the home directory"
    elif store is not None and _holds_more(real, store.resolve()):
        reason = f"it holds more than the directory of the store at {store}"
    elif store is not None and real.is_relative_to(store.resolve()):
        raise UnsafeWorkspace(f"{real} belongs to the store at {store} itself.")
    if reason is not None and not force:
        raise UnsafeWorkspace(f"{real} is refused as a workspace: {reason}.")
    return real
