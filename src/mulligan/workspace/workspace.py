"""The workspace of a session: captured at a checkpoint, compared, and brought back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from blake3 import blake3

from mulligan.codec import Ref
from mulligan.engine import Engine
from mulligan.errors import UnsafeWorkspace
from mulligan.faults import Reach, pass_by
from mulligan.model import Digest
from mulligan.objects.protocol import Bundle
from mulligan.state.document import MISSING, Document
from mulligan.workspace.apply import Apply, Failure
from mulligan.workspace.capture import Capture, Captured, Limits
from mulligan.workspace.entries import SELF, Directory, decode_entry, from_name
from mulligan.workspace.ignore import Rules
from mulligan.workspace.index import Index, load_index, save_index
from mulligan.workspace.plan import Step, TreePath, tree_steps
from mulligan.workspace.scan import Changes, Scan


class Workspace:
    """A directory whose files belong to a session."""

    def __init__(self, root: Path, engine: Engine, limits: Limits, reach: Reach = pass_by) -> None:
        self.root = root
        self._engine = engine
        self._limits = limits
        self._reach = reach
        self._index: Index | None = None
        self._loaded = False

    def elsewhere(self, root: Path) -> Workspace:
        """Return the workspace of another directory under the same limits."""
        return Workspace(root, self._engine, self._limits, self._reach)

    def capture(self, bundle: Bundle) -> Captured:
        """Bring the tree up to date with the files; its objects go into the bundle.

        Call :meth:`reset` when the bundle does not become part of the store after all.
        """
        rules = Rules.read(self.root)
        taken = self._engine.clock.wall_ns()
        changes = self._changes(rules)
        capture = Capture(self.root, bundle, self._index, self._limits)
        try:
            captured = capture.run(changes, rules, taken)
        except BaseException:
            self.reset()
            raise
        self._index = captured.index
        return captured

    def reset(self) -> None:
        """Forget what was seen: the next capture reads everything anew."""
        self._index, self._loaded = None, True

    def save(self) -> None:
        """Keep what was seen for the next process."""
        if self._index is not None and self._engine.directory is not None:
            save_index(self._index, self._index_file(self._engine.directory))

    def steps(
        self, before: Digest | None, after: Digest, only: list[TreePath] | None = None
    ) -> list[Step]:
        """Return what differs between two captured trees."""
        start: Any = {} if before is None else Ref(before)
        return tree_steps(self._document(after), start, Ref(after), only)

    def has(self, tree: Digest, path: TreePath) -> bool:
        """Whether a path is in a captured tree, or in the directory now."""
        if self._document(tree).find(path) is not MISSING:
            return True
        return os.path.lexists(os.fsencode(self.root) + b"/" + b"/".join(map(from_name, path)))

    def apply(self, steps: list[Step], target: Digest) -> list[Failure]:
        """Bring the files to the target tree by the steps; return what could not be done."""
        return write_tree(self._engine, self.root, steps, target, reach=self._reach)

    def _changes(self, rules: Rules) -> Changes:
        if not self._loaded:
            self._index = self._saved_index()
            self._loaded = True
        return Scan(os.fsencode(self.root), self._index, rules).everything()

    def _saved_index(self) -> Index | None:
        if self._engine.directory is None:
            return None
        found = load_index(self._index_file(self._engine.directory), self.root)
        if found is None or not self._engine.objects.has(found.tree):
            return None
        return found

    def _index_file(self, directory: Path) -> Path:
        name = blake3(os.fsencode(self.root)).hexdigest(length=8)
        return directory / "tmp" / f"index-{name}"

    def _document(self, tree: Digest) -> Document:
        return Document(Ref(tree), self._engine.load)


def write_tree(
    engine: Engine,
    root: Path,
    steps: list[Step],
    target: Digest,
    *,
    reach: Reach = pass_by,
    sync: bool = True,
) -> list[Failure]:
    """Apply steps towards a tree to a directory; return what could not be done."""
    document = Document(Ref(target), engine.load)

    def attributes(path: TreePath) -> Directory | None:
        found = document.find((*path, SELF))
        if found is MISSING:
            return None
        entry = decode_entry(document.plain(found))
        return entry if isinstance(entry, Directory) else None

    apply = Apply(os.fsencode(root), engine.objects, attributes, reach=reach, sync=sync)
    return apply.run(steps)


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
    elif store is not None and real in store.resolve().parent.parents:
        reason = f"it holds more than the directory of the store at {store}"
    if reason is not None and not force:
        raise UnsafeWorkspace(f"{real} is refused as a workspace: {reason}.")
    return real
