"""The files of a session at its points: plan, compare, read, copy elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import starmap
from pathlib import Path as OsPath
from typing import TYPE_CHECKING, NamedTuple

from mulligan import codec
from mulligan.document.document import MISSING, Document, LoadBytes, gc_paused
from mulligan.document.values import PathLike
from mulligan.engine import Engine
from mulligan.errors import DiskFull, PathNotFound, RestoreIncomplete, UnknownPoint, UnsafeWorkspace
from mulligan.journal.protocol import View
from mulligan.model import (
    Digest,
    FileChange,
    HeldFiles,
    LeftOut,
    ObjectKind,
    Plan,
    Point,
    Problem,
    SessionRecord,
)
from mulligan.objects.scratch import Scratch
from mulligan.session.names import SUPERVISOR, WORKSPACE
from mulligan.session.write.leases import process_of
from mulligan.timeline.checkpoints import event_at
from mulligan.timeline.files import files_at, remaining_files_at
from mulligan.timeline.sessions import known_session
from mulligan.timeline.times import shown as shown_time
from mulligan.workspace.capture.ignore import is_users
from mulligan.workspace.capture.patch import open_tree
from mulligan.workspace.entries import File, Link, TreePath, decode_entry, shown
from mulligan.workspace.restore.file_changes import file_changes
from mulligan.workspace.restore.plan import tree_changes, tree_path, unescaped

if TYPE_CHECKING:  # only what works in a workspace needs them, and they import a lot
    from mulligan.workspace.capture.capture import Captured
    from mulligan.workspace.checkout.checkout import Checkout
    from mulligan.workspace.checkout.checkout_plan import CheckoutPlan
    from mulligan.workspace.workspace import Workspace


class Present(NamedTuple):
    """The workspace as it is now, and a reader for the objects of its tree."""

    captured: Captured
    load: LoadBytes


class StoredFiles:
    """Reads trees of a session's checkpoints; changes nothing in the workspace."""

    def __init__(self, engine: Engine, record: SessionRecord, workspace: Workspace | None) -> None:
        self._engine = engine
        self._record = record
        self._workspace = workspace

    def held_at(self, point: Point) -> HeldFiles | None:
        """Return the files of a point; None when no checkpoint at or before it holds any."""
        with self._engine.read() as view:
            session = known_session(view, point.session)
            return files_at(self._engine, view, session.number, point.seq)

    def newest(self) -> HeldFiles | None:
        """Return the newest files of the session that retention has not removed."""
        with self._engine.read() as view:
            number = self._record.number
            return remaining_files_at(self._engine, view, number, view.head(number).seq)

    def tree_at(self, point: Point) -> Digest:
        """Return the tree of a point; raises ``UnknownPoint`` when no checkpoint holds files."""
        held = self.held_at(point)
        if held is None:
            raise UnknownPoint(
                f"No checkpoint at or before #{point.seq} of {point.session!r} holds files.",
                hint="Checkpoints hold files when the session is opened with workspace=DIR; "
                "those of `mulligan checkpoint` do, unless --no-files is given.",
            )
        return held.tree

    def present(self) -> Present | None:
        """Return the workspace as it is now; None if there is none.

        Its new objects are stored, so that the next call is cheap; nothing else is written. In a
        store that cannot be written, they are discarded. It waits while another process restores
        files; an interrupted restore is left as it is.
        """
        workspace = self._workspace
        if workspace is None:
            return None
        from mulligan.workspace.locks import share_directory

        # Shared: several processes may look at once, but none while a restore has half of the files
        # written.
        with share_directory(self._engine, workspace.root):
            if self._engine.read_only:
                return self._looked_at(workspace)
            return self._stored(workspace)

    def _stored(self, workspace: Workspace) -> Present:
        bundle = self._engine.bundle()
        with (
            workspace.capture(bundle) as captured,
            self._engine.write(bundle, session=self._record.number),
        ):
            pass  # a transaction without events: only the objects become part of the store
        return Present(captured, self._engine.load)

    def _looked_at(self, workspace: Workspace) -> Present:
        scratch = Scratch(self._engine.objects)
        return Present(workspace.peek(scratch), scratch.load)

    def plan(
        self,
        point: Point,
        tree: Digest | None,
        paths: list[TreePath] | None,
        held: HeldFiles | None,
    ) -> Plan:
        """Return what restoring a tree would do to the workspace; ``held`` is what holds it."""
        present = self.present()
        if self._workspace is None or present is None or tree is None:
            return Plan(point, (), (), ())
        from mulligan.workspace.capture.snapshot import databases_in_use
        from mulligan.workspace.restore.open_files import in_use
        from mulligan.workspace.restore.protect import in_the_way
        from mulligan.workspace.restore.purged import left_alone, purged_paths

        now = present.captured
        busy = starmap(LeftOut, databases_in_use(now.coverage.left_out).items())
        alone = [*now.coverage.left_out, *busy]
        holder = held or self.held_at(point)
        uncovered = {left.path for left in alone}
        uncovered |= holder.left_out if holder else set()
        steps = tree_changes(Document({}, present.load), now.tree, tree, paths)
        purged = left_alone(purged_paths(self._engine, steps))
        uncovered |= {left.path for left in purged}
        found = self._workspace.divide(steps, uncovered)
        root = os.fsencode(self._workspace.root)
        caches = found.caches.paths(root)
        gone = {shown(path) for path in found.caches.going}
        changes = file_changes(found.todo)
        left = [left for left in alone if left.path not in gone]
        return Plan(
            point=point,
            files=tuple(changes),
            left_alone=tuple(left),
            conflicts=tuple(self._conflicts(point, now.coverage.root, tree)),
            caches=tuple(map(shown, caches)),
            builds=tuple(_builds(self._workspace.root, left, changes)),
            open_files=tuple(in_use(root, found.todo, self._supervisor())),
            problems=in_the_way(found.left, {left.path: left.rule for left in alone}),
            purged=purged,
        )

    def make_durable(self) -> list[Problem]:
        """Sync the files of the workspace as the last plan saw them; return what failed."""
        failures = [] if self._workspace is None else self._workspace.make_durable()
        return [Problem("file", shown(path), reason) for path, reason in failures]

    def _supervisor(self) -> set[int]:
        """Return the process that runs the session, if there is one on this machine."""
        with self._engine.read() as view:
            lease = view.lease(self._record.number, SUPERVISOR)
        process = None if lease is None else process_of(lease.holder)
        return set() if process is None else {process}

    def changes_until_now(self, before: Digest, paths: list[TreePath] | None) -> list[FileChange]:
        """Return what differs between a tree and the workspace now; nothing if there is none."""
        now = self.present()
        if now is None:
            return []
        document = Document({}, now.load)
        return file_changes(tree_changes(document, before, now.captured.tree, paths))

    def changes(
        self, before: Digest | None, after: Digest | None, paths: list[TreePath] | None = None
    ) -> list[FileChange]:
        """Return what differs between two trees."""
        return file_changes(tree_changes(self._document(), before, after, paths))

    def changed_contents(self, before: Digest, after: Digest) -> Iterator[tuple[str, str]]:
        """Yield the files that differ between two trees, each with what identifies its content.

        Times and modes do not count. A file that is gone has the content ``deleted``.
        """
        for change in tree_changes(self._document(), before, after):
            if change.action == "attributes":
                continue
            entry = change.after
            if isinstance(entry, File):
                yield change.place, codec.value_digest(b"".join(entry.chunks)).hex()
            elif isinstance(entry, Link):
                yield change.place, f"link {entry.target.hex()}"
            elif isinstance(change.before, File | Link):
                yield change.place, "deleted"

    def read(self, tree: Digest, path: str) -> bytes:
        """Return the content of a file in a tree, or where a symlink points."""
        document = open_tree(self._document(), tree)
        found = document.find(_path_in(document, tree_path(path)))
        entry = None if found is MISSING else document.plain(found)
        if not isinstance(entry, list):
            raise PathNotFound(
                f"There is no file {path!r} at that point.",
                hint="Name a file from the top of the workspace: src/app.py.",
            )
        leaf = decode_entry(entry)
        if isinstance(leaf, Link):
            return leaf.target
        chunks: Iterable[Digest] = leaf.chunks if isinstance(leaf, File) else ()
        return b"".join(self._engine.objects.get(ObjectKind.CHUNK, chunk) for chunk in chunks)

    def paths_in(self, tree: Digest, only: Sequence[PathLike] | None) -> list[TreePath] | None:
        """Return the paths that parts of a tree name; ``workspace`` is all of it.

        Raises ``PathNotFound`` for a part that the tree does not have.
        """
        if only is None:
            return None
        document = open_tree(self._document(), tree)
        paths = [tree_path(part) for part in only]
        if (WORKSPACE,) in paths:
            return None
        named = [path[1:] if path[:1] == (WORKSPACE,) else path for path in paths]
        found = [_path_in(document, path) for path in named]
        for path in found:
            if document.find(path) is MISSING:
                raise PathNotFound(
                    f"There is no file {shown(path)!r} at that point.",
                    hint="Name files and directories from the top of the workspace: src/app.py.",
                )
        return found

    def copy(self, tree: Digest, to: OsPath, paths: list[TreePath] | None) -> list[Problem]:
        """Write a tree, or parts of it, into an empty or new directory; durable on return.

        An existing directory keeps its mode.
        """
        from mulligan.workspace.fsync import make_directories, sync_names

        target = self._place_for_copy(to)
        contents = self.contents(tree, paths)
        hint = "What is there is not complete. Delete it, free some space, then try again."
        with _space_for(to, hint):
            made = make_directories(target)
            failures = self._fresh(target, contents, is_new=bool(made)).run()
            # Names after contents: a directory that is found after a power cut is complete.
            sync_names(made)
        failures += contents.purged
        return [Problem("file", shown(path), reason) for path, reason in failures]

    def _fresh(self, target: OsPath, contents: CheckoutPlan, *, is_new: bool) -> Checkout:
        from mulligan.workspace.checkout.checkout import Checkout

        source = self._workspace.source() if self._workspace is not None else None
        objects, failpoint = self._engine.objects, self._engine.failpoint
        return Checkout(os.fsencode(target), contents, objects, failpoint, source, is_new=is_new)

    def _place_for_copy(self, to: OsPath) -> OsPath:
        """Return the real path of a directory for a copy, or refuse it."""
        if os.path.lexists(to) and (not to.is_dir() or any(to.iterdir())):
            raise UnsafeWorkspace(
                f"{to} is not an empty directory.", hint="Name a new or an empty directory."
            )
        if to.exists() and not os.access(to, os.W_OK | os.X_OK):
            raise UnsafeWorkspace(
                f"{to} cannot be written to.", hint="Name a directory of your own, or a new one."
            )
        target, store = to.resolve(), self._engine.directory
        if store is not None and target.is_relative_to(store.resolve()):
            raise UnsafeWorkspace(
                f"{to} belongs to the store itself.", hint="Name a directory outside of it."
            )
        return target

    def contents(self, tree: Digest, paths: list[TreePath] | None) -> CheckoutPlan:
        """Return the plan to write a tree, or parts of it."""
        from mulligan.workspace.checkout.checkout_plan import CheckoutPlan
        from mulligan.workspace.restore.purged import purged_chunks

        contents = CheckoutPlan()
        with gc_paused():
            if paths is None:
                contents.add_tree(open_tree(self._document(), tree))
            else:
                contents.add_changes(tree_changes(self._document(), None, tree, paths))
        contents.drop_purged(purged_chunks(self._engine, contents.chunks))
        return contents

    def _document(self) -> Document:
        """Return an empty document over the objects of the store."""
        return Document({}, self._engine.load)

    def place_for_fork(self, to: OsPath) -> OsPath:
        """Return the real path of a directory for another session, or refuse it."""
        if self._workspace is None:
            raise UnsafeWorkspace(
                "This session has no workspace to take files from.",
                hint="Open it with workspace=DIR.",
            )
        if to.absolute().resolve().is_relative_to(self._workspace.root):
            raise UnsafeWorkspace(
                f"{to} lies inside the workspace {self._workspace.root} itself.",
                hint="Name a directory outside of it.",
            )
        return self._place_for_copy(to.absolute())

    def fill(self, staging: OsPath, contents: CheckoutPlan, to: OsPath) -> None:
        """Write a tree into an empty directory, which becomes ``to``; all or an error."""
        with _space_for(to, "Nothing was made. Free some space, then try again."):
            failures = self._fresh(staging, contents, is_new=False).run()
        if failures:
            path, why = failures[0]
            named = "1 path" if len(failures) == 1 else f"{len(failures)} paths"
            raise RestoreIncomplete(
                f"{named} could not be written to {to}, first {shown(path)}: {why}.",
                hint="Nothing was made: no directory, and no session.",
            )

    def elsewhere(self, root: OsPath) -> Workspace:
        """Return the workspace of another session and directory with the same limits."""
        assert self._workspace is not None  # noqa: S101 -- place_for_fork has checked it
        return self._workspace.elsewhere(root)

    def _conflicts(self, point: Point, root: str, tree: Digest) -> list[str]:
        """Return what other sessions checkpointed in this directory after the point."""
        with self._engine.read() as view:
            session = known_session(view, point.session)
            # All in one snapshot: sessions that change meanwhile are compared as of one moment.
            since = event_at(view, session.number, point.seq).time
            own = self._record.number
            others = [r for r in view.sessions() if r.number != own and r.deleted is None]
            found = [self._later(view, other, since, root, tree) for other in others]
        return [text for text in found if text is not None]

    def _later(
        self, view: View, other: SessionRecord, since: datetime, root: str, tree: Digest
    ) -> str | None:
        """Return what a session captured or restored in a directory after a time, as one change.

        One line for a whole session: a conversation of a coding agent has hundreds of checkpoints.
        """
        first = other.origin.seq if other.origin else 0
        last: HeldFiles | None = None
        paths: set[str] = set()
        newer = remaining_files_at(self._engine, view, other.number, view.head(other.number).seq)
        while newer is not None and newer.seq > first and newer.time > since:
            older = remaining_files_at(self._engine, view, other.number, newer.seq - 1)
            if _root(newer) == root:
                before = older.tree if older and _root(older) == root else tree
                if changed := self.changes(before, newer.tree):
                    last = last or newer
                    paths.update(one.path for one in changed)
            newer = older
        return None if last is None else _conflict(last, len(paths))


def _builds(root: OsPath, left: list[LeftOut], changes: list[FileChange]) -> Iterator[str]:
    """Yield the directories left out by the user's rules, if there are files that change."""
    if any(c.change != "attributes" and c.kind != "directory" for c in changes):
        for one in left:
            if is_users(one.rule) and (root / one.path).is_dir():
                yield one.path


def _path_in(document: Document, path: TreePath) -> TreePath:
    """Return a path as the tree has it, if it was given in its escaped form."""
    other = unescaped(path)
    if other != path and document.find(path) is MISSING and document.find(other) is not MISSING:
        return other
    return path


@contextmanager
def _space_for(to: OsPath, hint: str) -> Iterator[None]:
    """Add to a full-disk error what there is no space for."""
    try:
        yield
    except (DiskFull, OSError) as error:
        from mulligan.workspace.restore.fileops import is_disk_full

        if isinstance(error, OSError) and not is_disk_full(error):
            raise
        raise DiskFull(f"There is no space left to write the files to {to}.", hint=hint) from error


def _root(held: HeldFiles) -> str | None:
    return held.coverage.root if held.coverage else None


def _conflict(held: HeldFiles, count: int) -> str:
    paths = "1 path" if count == 1 else f"{count} paths"
    moment = shown_time(held.time)
    if held.checkpoint is None:
        return (
            f"session {held.session!r} restored {paths} after that point, #{held.seq} of {moment}; "
            "a restore takes that back, too"
        )
    return (
        f"session {held.session!r} changed {paths} after that point, up to its checkpoint "
        f"{held.checkpoint[:12]} of {moment}; a restore takes that back, too"
    )
