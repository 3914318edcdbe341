"""The workspace of a session: captured at a checkpoint, compared, and restored."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from mulligan.document.document import MISSING, Document
from mulligan.engine import Engine
from mulligan.errors import DamageError, UnsafeWorkspace
from mulligan.failpoints import FailpointHook, ignore
from mulligan.layout import NAME, PATCHES
from mulligan.locate.git import exclude, guard
from mulligan.model import Digest, ObjectKind
from mulligan.objects.protocol import Bundle
from mulligan.workspace.capture.capture import Capture, Captured
from mulligan.workspace.capture.file_copy import FileCopies
from mulligan.workspace.capture.ignore import Rules
from mulligan.workspace.capture.index import (
    Index,
    Seen,
    Synced,
    load_index,
    save_index,
    stored_objects,
)
from mulligan.workspace.capture.limits import CaptureLimits
from mulligan.workspace.capture.patch import open_tree
from mulligan.workspace.capture.progress import Progress, untold
from mulligan.workspace.capture.rescan import Rescan
from mulligan.workspace.capture.scan import Changes, Scan
from mulligan.workspace.capture.snapshot import Snapshots, quiesced
from mulligan.workspace.entries import SELF, Directory, TreePath, decode_entry, from_name, to_name
from mulligan.workspace.file_handles import close_kept
from mulligan.workspace.root_state import RootStates
from mulligan.workspace.watch.mounts import Mounts

if TYPE_CHECKING:  # a checkpoint needs none of restore/ and checkout/
    from mulligan.workspace.checkout.reflink import ReflinkSource
    from mulligan.workspace.restore.caches import Caches
    from mulligan.workspace.restore.fileops import Failure
    from mulligan.workspace.restore.plan import TreeChange
    from mulligan.workspace.restore.protect import ProtectedSplit
    from mulligan.workspace.watch.watcher import Drained


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
        states: RootStates | None = None,
    ) -> None:
        """Combine what belongs to one session with the state that its directory has in ``states``.

        See ``mulligan.workspace.root_state``.
        """
        self.root = root
        self._stores = stores
        self._engine = engine
        self._limits = limits
        self._failpoint = failpoint
        self._progress = progress
        self._copies = FileCopies(engine.directory and engine.directory / "tmp", engine.clock)
        self._states = RootStates() if states is None else states
        self._state = self._states.of(root)
        self._state.users.add(self)
        self._looked = -1

    def watch(self) -> None:
        """Track changes as they happen, so that captures after the next one need no scan."""
        self._state.watching = True

    @property
    def unwatched(self) -> str | None:
        """Why changes are found by scans, or None while the watcher tracks them."""
        return self._state.watcher.reason if self._state.watcher else "no watcher was requested"

    def elsewhere(self, root: Path) -> Workspace:
        """Return the workspace of another session and directory under the same limits."""
        return Workspace(
            root,
            self._engine,
            self._limits,
            self._failpoint,
            stores=self._stores,
            states=self._states,
        )

    def source(self) -> ReflinkSource | None:
        """Return the files as last captured by this process, as a source for reflinks."""
        from mulligan.workspace.checkout.reflink import ReflinkSource

        # A capture of another session may change it meanwhile: what is cloned is compared first.
        with self._state.lock():
            index = self._state.index
        return None if index is None else ReflinkSource(os.fsencode(self.root), index)

    @contextmanager
    def capture(self, bundle: Bundle) -> Iterator[Captured]:
        """Bring the tree up to date with the files, for a block that commits the bundle.

        When the block ends normally, the next capture continues from this one. When it raises,
        everything seen is forgotten: the index would refer to objects that the store may not have.
        """
        # Pinned until the block has committed: what the index refers to must not be removed. Locked
        # for as long: captures of other sessions continue from what this one commits.
        with self._state.lock(), self._engine.pin() as epoch:
            captured = self._capture(bundle, epoch)
            try:
                yield captured
            except BaseException:
                self._reset()
                raise
            state = self._state
            if captured.index is state.captured:  # unless another capture followed in the block
                # Only now the store has the objects that the index refers to.
                state.index, state.captured = state.captured, None
                state.epoch = epoch

    def peek(self, bundle: Bundle) -> Captured:
        """Return the files as they are now, with a bundle that never becomes part of the store."""
        with self._state.lock():
            try:
                # What it has seen is forgotten afterwards: the index must not refer to objects that
                # are never stored.
                return self._capture(bundle)
            finally:
                self._reset()

    def _capture(self, bundle: Bundle, epoch: object = None) -> Captured:
        self._guard_store()
        try:
            # Programs are paused only while files are read; storing the tree happens afterwards.
            with quiesced(self.root, self._limits.snapshot) as problems:
                # Taken before the files are read: a mapping made later is found by the next
                # capture.
                mapped = self._state.mapped.files()
                rules, taken, capture = self._taken(bundle, mapped, epoch)
            capture.note(problems)
            captured = capture.finish(rules, taken)
        except BaseException:
            self._reset()
            raise
        # Descriptors kept for a program's locks are released as soon as it has closed its own.
        close_kept()
        self._state.captured = captured.index
        self._state.captured.damage = self._state.damage
        self._state.captured.collections = self._state.collections
        self._state.captured.mapped = dict.fromkeys(mapped)
        if self._state.watcher is not None:
            # After the capture, with the ctimes it saw: a file that changed since is reported
            # again.
            self._state.watcher.follow(capture.linked)
        return captured

    def _guard_store(self) -> None:
        """Hide a store, or the pointer to one, from git, which may be newer than these."""
        store = self._engine.directory
        if store is None or self._engine.read_only:
            return
        with suppress(OSError):  # the guard is optional
            if store.name == NAME:
                guard(store)
            elif os.path.isfile(self.root / NAME):
                exclude(self.root)

    def _taken(
        self, bundle: Bundle, mapped: set[bytes], epoch: object
    ) -> tuple[Rules, int, Capture]:
        """Read everything that changed; return the rules used and the time the look began.

        ``mapped`` are the files that programs have mapped now.
        """
        self._forget_removed(epoch)
        rules = Rules.read(self.root, self._is_temporary, self._stores_within)
        # Before the scan starts, so that a change during the scan counts as newer than it.
        taken = self._engine.clock.wall_ns()
        changes = self._changes(rules, mapped)
        # The index is changed in place and then refers to objects that the store may never get.
        # Drop it here, so that a failed capture cannot leave it behind.
        index, self._state.index = self._state.index, None
        capture = Capture(
            self.root,
            bundle,
            index,
            self._limits,
            self._progress,
            copies=self._copies,
            patches=PATCHES in self._engine.features,
        )
        drain = self._drain_names if self._state.watcher is not None else None
        sleep = self._engine.clock.sleep
        Rescan(os.fsencode(self.root), rules, capture, drain, sleep).run(changes, taken)
        return rules, taken, capture

    def _forget_removed(self, epoch: object) -> None:
        """Forget what was seen if a collection may have removed what the index refers to.

        The caller is pinned, so what is usable now stays so until its commit. If damage was found
        since, every file is read again, and those whose content is damaged are stored again.
        """
        state = self._state
        state.damage = self._engine.note_damaged()
        # In the same epoch, no collection has removed anything: that needs a grace period.
        is_same = epoch is not None and epoch is state.epoch
        if is_same and state.index is not None and state.index.damage == state.damage:
            return
        with self._engine.read() as view:
            state.collections = view.collection().count
        if state.index is not None and not self._is_usable(state.index):
            self._reset()

    def _is_usable(self, index: Index) -> bool:
        objects, trees = self._engine.objects, {index.tree, index.edits.base}
        if index.damage != self._state.damage or not objects.are_usable(trees):
            return False
        # A collection may have ended early, or kept a whole tree as the base of patches alone. So a
        # tree may be there of which a part is not.
        if index.collections != self._state.collections:
            with suppress(DamageError):
                return objects.are_usable(stored_objects(index, self._engine.load))
            return False
        return True

    def _reset(self) -> None:
        """Forget what was seen: the next capture reads everything again."""
        self._state.index, self._state.captured, self._state.loaded = None, None, True
        self._stop_watcher()

    def close(self) -> None:
        """Save the index for the next process, and stop watching, if no other session needs it."""
        state = self._state
        with state.lock():
            is_open = self in state.users
            state.users.discard(self)
            if is_open and not state.users:
                self._stop_watcher()
                state.watching = False
                self.save()

    def save(self) -> None:
        """Save the index for the next process."""
        if self._state.index is not None and self._engine.directory is not None:
            save_index(self._state.index, self._index_file(self._engine.directory))

    def tree_changes(
        self,
        before: Digest,
        after: Digest,
        only: list[TreePath] | None = None,
        bundle: Bundle | None = None,
    ) -> list[TreeChange]:
        """Return what differs between two captured trees; the bundle may hold parts of them."""
        from mulligan.workspace.restore.plan import tree_changes

        # Only edits to the base of both trees are used, so those of another session are as good.
        with self._state.lock():
            index = self._state.index or self._state.captured
            edits = index.edits if index else None
            return tree_changes(self._document(bundle), before, after, only, edits)

    def has(self, tree: Digest, path: TreePath) -> bool:
        """Whether a path is in a captured tree, or currently in the directory."""
        if ".." in path:
            return False
        if open_tree(self._document(), tree).find(path) is not MISSING:
            return True
        return os.path.lexists(os.fsencode(self.root) + b"/" + b"/".join(map(from_name, path)))

    def divide(self, changes: list[TreeChange], uncovered: Collection[str]) -> ProtectedSplit:
        """Split changes into those to apply and those that would touch protected paths."""
        from mulligan.workspace.restore.protect import divide

        rules = Rules.read(self.root, stores=self._stores_within)
        return divide(os.fsencode(self.root), rules, changes, uncovered)

    def apply(
        self,
        changes: list[TreeChange],
        token: str,
        tree: Digest | None = None,
        only: Sequence[TreePath] | None = None,
        caches: Caches | None = None,
        touch: Sequence[TreeChange] = (),
    ) -> list[Failure]:
        """Apply the changes from the captured tree to another one; return what failed.

        Anything that no longer looks as it did at the last capture is not touched. ``token`` is
        part of every temporary name, so that ``remove_temporary_files`` can find them. ``tree`` is
        the target tree if ``only`` parts of it are restored: the parent directories get its times.
        ``caches`` are removed on the way. Files changed by ``touch`` get the present time.
        """
        with self._state.lock():
            return self._apply(changes, token, tree, only, caches, touch)

    def _apply(
        self,
        changes: list[TreeChange],
        token: str,
        tree: Digest | None,
        only: Sequence[TreePath] | None,
        caches: Caches | None,
        touch: Sequence[TreeChange],
    ) -> list[Failure]:
        from mulligan.workspace.restore.apply import Apply  # captures have no use for them
        from mulligan.workspace.restore.recent import recently_changed

        mtime = self._mtime
        if only is not None and tree is not None:
            mtime = partial(_mtime_in, open_tree(self._document(), tree))
        root, objects, index = os.fsencode(self.root), self._engine.objects, self._state.index
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
        if index is None:
            return apply.run(changes, touch)
        recent = list(recently_changed(index, changes, only, self._state.synced))
        failures = apply.run(changes, touch, recent)
        if only is None and not failures:
            # The sync came after the capture: what the capture saw is durable, unless it changes
            # again, and then its times show it.
            known = frozenset(directory.ino for directory in index.directories.values())
            self._state.synced = Synced(index.fresh_from, known)
        return failures

    def make_durable(self) -> list[Failure]:
        """Sync what changed shortly before the last capture; return what failed."""
        return self.apply([], token="")

    def remove_old_temporary_files(self) -> None:
        """Remove the temporary files that the last capture left out.

        Only for a restore, which has the directory locked: these belong to restores that have
        ended.
        """
        from mulligan.workspace.handles import Handles

        with self._state.lock():
            index = self._state.index or self._state.captured
        handles = Handles(os.fsencode(self.root))
        try:
            for path in index.left_out if index else ():
                parts = tuple(map(to_name, path.split(b"/"))) if path else ()
                names = index.directories[path].left_out if index else {}
                for name in filter(self._is_temporary, names):
                    with suppress(OSError):  # it remains, and captures keep leaving it out
                        # The restore lock is held, so no running restore can own this file.
                        os.unlink(name, dir_fd=handles.directory(parts))
        finally:
            handles.close()

    @cached_property
    def _stores_within(self) -> list[bytes]:
        """The paths of stores in this directory: a restore must never roll back a store."""
        within = [place for place in self._stores if self.root in place.parents]
        return [os.fsencode(place.relative_to(self.root)) for place in within]

    def _is_temporary(self, name: bytes) -> bool:
        """Whether a name is a temporary file of this store: its token belongs to a checkpoint."""
        from mulligan.workspace.restore.swap import token_of

        token = token_of(name)
        if token is None:
            return False
        if token in self._state.tokens:
            return True
        with self._engine.read() as view:
            if not view.checkpoints_by_id(token):
                return False  # not cached: the token may appear later
        self._state.tokens.add(token)
        return True

    def _seen(self, path: TreePath) -> Seen | None:
        index = self._state.index
        return index.leaf(b"/".join(map(from_name, path))) if index else None

    def _mtime(self, path: TreePath) -> int | None:
        """Return the time of a directory as it was captured."""
        index = self._state.index
        seen = index and index.directories.get(b"/".join(map(from_name, path)))
        return seen.mtime if seen else None

    def _changes(self, rules: Rules, mapped: set[bytes]) -> Changes:
        """Return what may have changed; ``mapped`` are the files that programs have mapped now."""
        if not self._state.loaded:
            self._state.index = self._saved_index()
            self._state.loaded = True
        root = os.fsencode(self.root)
        drained = self._drained(rules)
        # What a scan finds is not known before: other sessions have to look as well.
        self._state.changes += drained is None
        # Here, not after the capture: a file may change after it was read, which the drains during
        # the capture see, and only the next capture looks at.
        self._looked = self._state.changes
        if drained is None:
            if self._state.watching:
                self._stop_watcher()
                from mulligan.workspace.watch.watcher import (
                    Watcher,  # only long-lived processes watch
                )

                # The watches must stand before the scan starts, or a change in between would be
                # missed.
                self._state.watcher = Watcher(root, rules)
                self._state.watcher.start()
            self._invalidate_suspects(root, mapped)
            return Scan(root, self._state.index, rules).everything()
        paths = drained.paths | self._suspects(mapped)
        return Scan(root, self._state.index, rules).paths(paths, drained.renewed)

    def _suspects(self, mapped: set[bytes]) -> set[bytes]:
        """Return what may have changed silently: files mapped now or when they were read."""
        index = self._state.index
        return {path for path in mapped.union(index.mapped) if index.leaf(path)} if index else set()

    def _invalidate_suspects(self, root: bytes, mapped: set[bytes]) -> None:
        """Make a scan read the files that may have changed without their times showing it.

        On in-memory filesystems that is any file, so all bytes are compared.
        """
        if self._state.index is None:
            return
        changed = self._suspects(mapped)
        if places := _in_memory(root):
            from mulligan.workspace.restore.content_check import rewritten

            document, objects = self._document(), self._engine.objects
            changed |= set(rewritten(root, self._state.index, places, document, objects))
        self._state.index.invalidate(changed)

    def _drained(self, rules: Rules) -> Drained | None:
        """Return what the watcher knows, or None if a scan is needed."""
        state = self._state
        if state.watcher is None or state.index is None or state.index.rules != rules.identity:
            return None
        drained = state.drain()
        if drained is not None:
            drained.paths.update(state.carried_paths)
            drained.renewed.update(state.carried_renewed)
            state.carried_paths, state.carried_renewed = set(), set()
        return drained

    def look_for_changes(self) -> bool | None:
        """Return whether files changed since the last look of this session, or its last capture.

        None if only a scan can tell. The next capture looks at what was seen here.
        """
        state = self._state
        with state.lock():
            if self._carried() is None:
                return None
            before, self._looked = self._looked, state.changes
            return before != state.changes

    def _drain_names(self) -> set[bytes] | None:
        """Return the paths that changed during a capture, or None if only a scan can find them.

        The next capture looks at them as well: this one considers only names.
        """
        drained = self._carried()
        return None if drained is None or drained.renewed else drained.paths

    def _carried(self) -> Drained | None:
        """Return what changed since the last drain, and keep it for the next capture."""
        drained = self._state.drain()
        if drained is not None:
            self._state.carried_paths |= drained.paths
            self._state.carried_renewed |= drained.renewed
        return drained

    def _stop_watcher(self) -> None:
        self._state.carried_paths, self._state.carried_renewed = set(), set()
        if self._state.watcher is not None:
            self._state.watcher.close()
            self._state.watcher = None

    def _saved_index(self) -> Index | None:
        """Return the index saved by another process, if this store has what it refers to.

        A tree becomes part of the store in the same transaction as the objects below it, or in a
        later one. So a store that has the tree has everything the index refers to, and a store that
        was rolled back to an earlier state does not have the tree.
        """
        if self._engine.directory is None:
            return None
        found = load_index(self._index_file(self._engine.directory), self.root)
        if found is None:
            return None
        try:
            # The base as well: the next capture stores a patch to it.
            for tree in {found.tree, found.edits.base}:
                self._engine.load(tree)
        except DamageError:
            return None  # later captures would build on these trees
        return found if self._is_usable(found) else None

    def _index_file(self, directory: Path) -> Path:
        # By path, in tmp/: losing it costs one full scan.
        name = blake3(os.fsencode(self.root)).hexdigest(length=8)
        return directory / "tmp" / f"index-{name}"

    def _document(self, bundle: Bundle | None = None) -> Document:
        """Return an empty document over the objects of the store or of a bundle."""
        if bundle is None:
            return Document({}, self._engine.load)
        return Document({}, lambda digest: bundle.get(ObjectKind.VALUE, digest))


def _in_memory(root: bytes) -> list[bytes]:
    """Return where, relative to the root, times do not show writes through mappings."""
    try:
        with closing(Mounts(root)) as mounts:
            return mounts.in_memory()
    except OSError:
        return []  # the system does not list its mounts


def _mtime_in(document: Document, path: TreePath) -> int | None:
    """Return the time of a directory in a tree."""
    found = document.find((*path, SELF))
    entry = None if found is MISSING else decode_entry(document.plain(found))
    return entry.mtime if isinstance(entry, Directory) else None


def _holds_more(root: Path, store: Path) -> bool:
    """Whether a store is below a directory without being that directory's own store."""
    return root in store.parents and (root != store.parent or store.name != NAME)


def check_root(root: Path, store: Path | None, home: Path, *, force: bool) -> Path:
    """Return the real path of a workspace; refuse one that holds far more than a project."""
    try:
        real = root.resolve(strict=True)
    except (FileNotFoundError, NotADirectoryError):
        raise UnsafeWorkspace(
            f"There is no directory {root}.", hint="Make it first, or name another one."
        ) from None
    except (OSError, RuntimeError) as error:  # the second: links in a circle
        why = f": {error.strerror}" if isinstance(error, OSError) else ""
        raise UnsafeWorkspace(f"{root} cannot be used{why}.", hint="Check the path.") from error
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
