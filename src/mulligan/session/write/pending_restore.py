"""Restores of files that were begun: what ``restore.begun`` says, and who may go on with it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path as OsPath
from typing import Any

import msgspec

from mulligan.document.document import MISSING, Document
from mulligan.document.fold import PENDING, RESTORE_BEGUN, Change
from mulligan.engine import Engine
from mulligan.model import Digest, Path, Pending, Point
from mulligan.workspace.entries import TreePath, from_name, to_name


class RestoreOrigin(msgspec.Struct, frozen=True):
    """What was there before a restore: the tree, and the seq of the checkpoint that holds it."""

    tree: Digest
    safety: int

    @property
    def seq(self) -> int:
        """The seq of ``restore.begun``, which follows that checkpoint at once."""
        return self.safety + 1


class PendingRestore(msgspec.Struct, frozen=True):
    """A restore of files under way.

    ``only`` and ``paths`` are the parts of state and files, None for everything; ``held`` is the
    seq of the checkpoint that holds the tree, ``restored`` that of a restore which does;
    ``present`` is the tree that it set out from: not its origin's once it had to be taken up
    again; ``touch`` if what it changes gets the present time.
    """

    mode: str
    point: Point
    only: list[Path] | None
    tree: Digest
    paths: list[TreePath] | None
    held: int | None
    origin: RestoreOrigin
    root: OsPath
    present: Digest
    touch: bool = False
    restored: int | None = None

    def is_in(self, directory: OsPath) -> bool:
        """Whether it goes on in a directory: its own by any path, or where that was moved to."""
        with suppress(OSError):
            return self.root == directory or self.root.samefile(directory)
        return not self.root.exists()

    def shown(self, *, is_running: bool = False) -> Pending:
        """Return what people need to know of it."""
        return Pending(self.mode, self.point, str(self.root), self.origin.safety, is_running)


def pending_restore_change(begun: PendingRestore) -> Change:
    """Return the event that says that a restore was begun."""
    payload: dict[str, Any] = {
        "mode": begun.mode,
        "session": begun.point.session,
        "seq": begun.point.seq,
        "only": plain_paths(begun.only),
        "tree": begun.tree,
        "paths": plain_paths(begun.paths),
        "held": begun.held,
        "before": begun.origin.tree,
        "safety": begun.origin.safety,
        "present": begun.present,
        "root": to_name(os.fsencode(begun.root)),
        **({"touch": True} if begun.touch else {}),
    }
    if begun.restored is not None:
        payload["restored"] = begun.restored
    return RESTORE_BEGUN, payload


def read_pending_restore(engine: Engine, document: Document) -> PendingRestore | None:
    """Return the restore that is under way in a document, if there is one."""
    pending = document.find(PENDING)
    if pending is MISSING:
        return None
    said: dict[str, Any] = engine.plain(pending)
    before = Digest(said["before"])
    return PendingRestore(
        mode=said["mode"],
        point=Point(said["session"], said["seq"]),
        only=_paths(said["only"]),
        tree=Digest(said["tree"]),
        paths=_paths(said["paths"]),
        held=said["held"],
        origin=RestoreOrigin(before, said["safety"]),
        root=OsPath(os.fsdecode(from_name(said["root"]))),
        present=Digest(said.get("present", before)),
        touch=said.get("touch", False),
        restored=said.get("restored"),
    )


def plain_paths(paths: Sequence[Sequence[Any]] | None) -> list[list[Any]] | None:
    """Return paths as an event holds them."""
    return None if paths is None else [list(path) for path in paths]


def _paths(said: Any) -> list[Any] | None:
    return None if said is None else [tuple(path) for path in said]
