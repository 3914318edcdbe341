"""The files of a session at its points: plan, compare, read, copy elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path as OsPath
from typing import Any

from mulligan.codec import Ref
from mulligan.engine import Engine
from mulligan.errors import PathNotFound, RestoreIncomplete, UnknownPoint, UnsafeWorkspace
from mulligan.model import (
    Checkpoint,
    Digest,
    FileChange,
    ObjectKind,
    Plan,
    Point,
    Problem,
    SessionRecord,
)
from mulligan.state.document import MISSING, Document
from mulligan.timeline.checkpoints import checkpoint_with_files
from mulligan.workspace.capture import Captured
from mulligan.workspace.changes import file_changes
from mulligan.workspace.entries import File, Link, decode_entry, shown, to_name
from mulligan.workspace.plan import TreePath, tree_steps
from mulligan.workspace.workspace import Workspace, write_tree


class Files:
    """Reads trees of a session's checkpoints; changes nothing in the workspace."""

    def __init__(self, engine: Engine, record: SessionRecord, workspace: Workspace | None) -> None:
        self._engine = engine
        self._record = record
        self._workspace = workspace

    def checkpoint_at(self, point: Point) -> Checkpoint | None:
        """Return the newest checkpoint at or before a point that holds files."""
        with self._engine.read() as view:
            session = view.find(point.session) or self._record
            return checkpoint_with_files(self._engine, view, session.number, point.seq)

    def tree_at(self, point: Point) -> Digest:
        """Return the tree of a point; raises ``UnknownPoint`` when no checkpoint holds files."""
        held = self.checkpoint_at(point)
        if held is None or held.workspace is None:
            raise UnknownPoint(
                f"No checkpoint at or before #{point.seq} of {point.session!r} holds files.",
                hint="Checkpoints hold files when the session is opened with workspace=DIR.",
            )
        return held.workspace

    def present(self) -> Captured | None:
        """Return the workspace as it is now; its new objects are stored, nothing else is."""
        if self._workspace is None:
            return None
        bundle = self._engine.bundle()
        captured = self._workspace.capture(bundle)
        try:
            with self._engine.write(bundle):
                pass
        except BaseException:
            self._workspace.reset()
            raise
        return captured

    def plan(self, point: Point, tree: Digest | None, paths: list[TreePath] | None) -> Plan:
        """Return what bringing a tree back would do to the workspace."""
        now = self.present()
        if now is None or tree is None:
            return Plan(point, (), (), ())
        changes = self.changes(now.tree, tree, paths)
        left_alone = tuple(now.coverage.left_out)
        return Plan(point, tuple(changes), left_alone, tuple(self._conflicts(point)))

    def changes(
        self, before: Digest | None, after: Digest | None, paths: list[TreePath] | None = None
    ) -> list[FileChange]:
        """Return what differs between two trees."""
        document = Document({}, self._engine.load)
        one: Any = {} if before is None else Ref(before)
        other: Any = {} if after is None else Ref(after)
        return file_changes(tree_steps(document, one, other, paths))

    def read(self, tree: Digest, path: str) -> bytes:
        """Return the content of a file in a tree, or where a symlink points."""
        document = Document(Ref(tree), self._engine.load)
        found = document.find(_keys(path))
        entry = None if found is MISSING else document.plain(found)
        if not isinstance(entry, list):
            raise PathNotFound(f"There is no file {path!r} at that point.")
        leaf = decode_entry(entry)
        if isinstance(leaf, Link):
            return leaf.target
        chunks: Iterable[Digest] = leaf.chunks if isinstance(leaf, File) else ()
        return b"".join(self._engine.objects.get(ObjectKind.CHUNK, chunk) for chunk in chunks)

    def copy(self, tree: Digest, to: OsPath, paths: list[TreePath] | None) -> list[Problem]:
        """Write a tree, or parts of it, into an empty or new directory."""
        if to.exists() and (not to.is_dir() or any(to.iterdir())):
            raise UnsafeWorkspace(
                f"{to} is not an empty directory.", hint="Name a new or an empty directory."
            )
        to.mkdir(parents=True, exist_ok=True)
        document = Document({}, self._engine.load)
        steps = tree_steps(document, {}, Ref(tree), paths)
        failures = write_tree(self._engine, to, steps, tree, sync=False)
        return [Problem("file", shown(path), reason) for path, reason in failures]

    def clone(self, tree: Digest, to: OsPath) -> Workspace:
        """Write a tree into a directory that becomes another session's workspace."""
        if self._workspace is None:
            raise UnsafeWorkspace(
                "This session has no workspace to take files from.",
                hint="Open it with workspace=DIR.",
            )
        target = to.absolute()
        if target.resolve().is_relative_to(self._workspace.root):
            raise UnsafeWorkspace(
                f"{to} lies inside the workspace {self._workspace.root} itself.",
                hint="Name a directory outside of it.",
            )
        problems = self.copy(tree, target, None)
        if problems:
            raise RestoreIncomplete(
                f"{len(problems)} files could not be written to {to}, first "
                f"{problems[0].where}: {problems[0].detail}.",
                hint="The directory is incomplete and belongs to no session; delete it.",
            )
        return self._workspace.elsewhere(target.resolve())

    def _conflicts(self, point: Point) -> list[str]:
        """Return what other sessions checkpointed in this directory after the point."""
        return []


def _keys(path: str) -> TreePath:
    return tuple(to_name(part) for part in os.fsencode(path).split(b"/"))
