"""The target of a restore, and what follows from it alone."""

from __future__ import annotations

import msgspec

from mulligan.document.document import Document
from mulligan.model import Checkpoint, Digest, HeldFiles, Path, PendingRestore, Point
from mulligan.session.write.checkpoint_request import CheckpointRequest
from mulligan.workspace.entries import TreePath, shown

RESTORE = "restore"
"""The mode of a restore that is neither an undo nor a redo."""


class Target(msgspec.Struct, frozen=True):
    """The target of a restore: the point, its document, its tree, and which parts of both.

    ``only`` and ``paths`` are None for everything; ``tree`` is None if no files are restored.
    ``held`` is what holds the tree on the point's timeline, with its coverage. With ``touch``,
    changed files get the current time. ``takes_back`` is the seq of the restore that an undo or a
    redo reverses. ``accepts`` says that effects may be left behind; ``rolls`` names the agent whose
    effects are, where only its parts are restored.
    """

    point: Point
    document: Document
    only: list[Path] | None
    tree: Digest | None = None
    paths: list[TreePath] | None = None
    held: HeldFiles | None = None
    touch: bool = False
    takes_back: int | None = None
    accepts: bool = False
    rolls: str | None = None

    @property
    def rewinds(self) -> bool:
        """Whether effects after the point lie beyond the timeline from then on."""
        return self.only is None or self.rolls is not None

    @property
    def left_out(self) -> set[str]:
        """What the target's files do not cover."""
        return self.held.left_out if self.held else set()

    @property
    def workspace(self) -> tuple[str, ...] | None:
        """The paths of its files, as text; None for all of them."""
        if self.tree is None:
            return ()
        return None if self.paths is None else tuple(shown(path) for path in self.paths)

    @property
    def files(self) -> Digest:
        """The tree of a target that files are part of."""
        assert self.tree is not None  # noqa: S101 -- only restores of files ask for it
        return self.tree


def is_again(pending: PendingRestore, mode: str, target: Target | None) -> bool:
    """Whether the caller requests exactly the restore that is pending."""
    if pending.mode != mode or target is None:
        return pending.mode == mode
    point, asked = pending.point, target.point
    parts = (asked.session, asked.seq, target.only, target.tree, target.paths)
    return parts == (point.session, point.seq, pending.only, pending.tree, pending.paths)


def takes_back(mode: str, pending: PendingRestore) -> bool:
    """Whether undo or redo would reverse an unfinished restore."""
    return (mode == "redo") == (pending.mode == "undo")


def safety_request(target: Target, mode: str, *, is_halfway: bool = False) -> CheckpointRequest:
    """Return the safety checkpoint to take before a restore continues."""
    when = "halfway through" if is_halfway else "before"
    note = f"{when} {mode} to #{target.point.seq} of {target.point.session}"
    return CheckpointRequest("pre_operation", note, safety=True)


def left_out(checkpoint: Checkpoint) -> set[str]:
    """Return the paths that a checkpoint does not cover."""
    return {left.path for left in checkpoint.coverage.left_out} if checkpoint.coverage else set()
