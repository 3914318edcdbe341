"""The files of a session at its points: plan, compare, read, copy elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import starmap
from pathlib import Path as OsPath
from typing import TYPE_CHECKING, NamedTuple

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
from mulligan.session.names import SUPERVISOR
from mulligan.session.write.leases import process_of
from mulligan.timeline.checkpoints import event_at
from mulligan.timeline.files import files_at
from mulligan.timeline.sessions import known_session
from mulligan.timeline.times import shown as shown_time
from mulligan.workspace.capture.capture import Captured
from mulligan.workspace.capture.ignore import is_users
from mulligan.workspace.capture.patch import open_tree
from mulligan.workspace.capture.snapshot import databases_in_use
from mulligan.workspace.entries import File, Link, TreePath, decode_entry, shown
from mulligan.workspace.fsync import make_directories, sync_names
from mulligan.workspace.locks import share_directory
from mulligan.workspace.restore.file_changes import file_changes
from mulligan.workspace.restore.fileops import is_disk_full
from mulligan.workspace.restore.open_files import in_use
from mulligan.workspace.restore.plan import tree_changes, tree_path, unescaped
from mulligan.workspace.restore.protect import in_the_way
from mulligan.workspace.workspace import Workspace

if TYPE_CHECKING:  # only copies of a workspace need them, and they import a lot
    from mulligan.workspace.checkout.checkout import Checkout
    from mulligan.workspace.checkout.checkout_plan import CheckoutPlan

WORKSPACE = "workspace"
"""The part of a restore that stands for all files."""


class Present(NamedTuple):
    """The workspace as it is now, and what returns the objects of its tree."""

    captured: Captured
    load: LoadBytes


class Files:
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

        Its new objects are stored, so that the next look is cheap; nothing else is. Where nothing
        can be written it is looked at all the same, and forgotten. It waits while another
        process restores files; one that was interrupted is left as it is.
        """
        workspace = self._workspace
        if workspace is None:
            return None
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
        """Return what bringing a tree back would do to the workspace; ``held`` is what holds it."""
        present = self.present()
        if self._workspace is None or present is None or tree is None:
            return Plan(point, (), (), ())
        now = present.captured
        busy = starmap(LeftOut, databases_in_use(now.coverage.left_out).items())
        alone = [*now.coverage.left_out, *busy]
        holder = held or self.held_at(point)
        uncovered = {left.path for left in alone}
        uncovered |= holder.left_out if holder else set()
        steps = tree_changes(Document({}, present.load), now.tree, tree, paths)
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
        )

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

    def read(self, tree: Digest, path: str) -> bytes:
        """Return the content of a file in a tree, or where a symlink points."""
        document = open_tree(self._document(), tree)
        found = document.find(_path_in(document, tree_path(path)))
        entry = None if found is MISSING else document.plain(found)
        if not isinstance(entry, list):
            raise PathNotFound(f"There is no file {path!r} at that point.")
        leaf = decode_entry(entry)
        if isinstance(leaf, Link):
            return leaf.target
        chunks: Iterable[Digest] = leaf.chunks if isinstance(leaf, File) else ()
        return b"".join(self._engine.objects.get(ObjectKind.CHUNK, chunk) for chunk in chunks)

    def paths_in(self, tree: Digest, only: Sequence[PathLike] | None) -> list[TreePath] | None:
        """Return the paths that parts of a tree name; ``workspace`` is all of it.

        A part that the tree does not have is a ``PathNotFound``.
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
        """Write a tree, or parts of it, into an empty or new directory; all of it is durable then.

        One that exists already keeps its mode, which its owner has chosen.
        """
        target = self._place_for_copy(to)
        contents = self.contents(tree, paths)
        hint = "What is there is not complete. Delete it, free some space, then try again."
        with _space_for(to, hint):
            made = make_directories(target)
            failures = self._fresh(target, contents, is_new=bool(made)).run()
            sync_names(made)
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
        """Return a tree, or parts of it, laid out to be written."""
        from mulligan.workspace.checkout.checkout_plan import CheckoutPlan

        contents = CheckoutPlan()
        with gc_paused():
            if paths is None:
                contents.add_tree(open_tree(self._document(), tree))
            else:
                contents.add_changes(tree_changes(self._document(), None, tree, paths))
        return contents

    def _document(self) -> Document:
        """Return a document with nothing in it over the objects of the store."""
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

    def fill(self, draft: OsPath, contents: CheckoutPlan, to: OsPath) -> None:
        """Write a tree into an empty directory, the draft of ``to``; all or an error."""
        with _space_for(to, "Nothing was made. Free some space, then try again."):
            failures = self._fresh(draft, contents, is_new=False).run()
        if failures:
            path, why = failures[0]
            named = "1 path" if len(failures) == 1 else f"{len(failures)} paths"
            raise RestoreIncomplete(
                f"{named} could not be written to {to}, first {shown(path)}: {why}.",
                hint="Nothing was made: no directory, and no session.",
            )

    def elsewhere(self, root: OsPath) -> Workspace:
        """Return the workspace of another directory under the same limits."""
        assert self._workspace is not None  # noqa: S101 -- place_for_fork has checked it
        return self._workspace.elsewhere(root)

    def _conflicts(self, point: Point, root: str, tree: Digest) -> list[str]:
        """Return what other sessions checkpointed in this directory after the point."""
        with self._engine.read() as view:
            session = known_session(view, point.session)
            since = event_at(view, session.number, point.seq).time
            others = [made for made in view.sessions() if made.number != self._record.number]
            found = [self._later(view, other, since, root, tree) for other in others]
        return [text for texts in found for text in texts]

    def _later(
        self, view: View, other: SessionRecord, since: datetime, root: str, tree: Digest
    ) -> list[str]:
        """Return what a session captured or restored in a directory after a time, oldest first."""
        first = other.origin.seq if other.origin else 0
        found = []
        newer = files_at(self._engine, view, other.number, view.head(other.number).seq)
        while newer is not None and newer.seq > first and newer.time > since:
            older = files_at(self._engine, view, other.number, newer.seq - 1)
            if _root(newer) == root:
                before = older.tree if older and _root(older) == root else tree
                found.append((newer, len(self.changes(before, newer.tree))))
            newer = older
        return [_conflict(held, count) for held, count in reversed(found) if count]


def _builds(root: OsPath, left: list[LeftOut], changes: list[FileChange]) -> Iterator[str]:
    """Yield the directories left out by the user's rules, if there are files that change."""
    if any(c.change != "attributes" and c.kind != "directory" for c in changes):
        for one in left:
            if is_users(one.rule) and (root / one.path).is_dir():
                yield one.path


def _path_in(document: Document, path: TreePath) -> TreePath:
    """Return a path as the tree has it, if it was given as it is shown."""
    other = unescaped(path)
    if other != path and document.find(path) is MISSING and document.find(other) is not MISSING:
        return other
    return path


@contextmanager
def _space_for(to: OsPath, hint: str) -> Iterator[None]:
    """Say for what there is no space."""
    try:
        yield
    except (DiskFull, OSError) as error:
        if isinstance(error, OSError) and not is_disk_full(error):
            raise
        raise DiskFull(f"There is no space left to write the files to {to}.", hint=hint) from error


def _root(held: HeldFiles) -> str | None:
    return held.coverage.root if held.coverage else None


def _conflict(held: HeldFiles, count: int) -> str:
    paths = "1 path" if count == 1 else f"{count} paths"
    moment = shown_time(held.time)
    if held.checkpoint is None:
        return f"session {held.session!r} restored {paths}, #{held.seq} of {moment}"
    return (
        f"session {held.session!r} changed {paths} up to its checkpoint "
        f"{held.checkpoint[:12]} of {moment}"
    )
