"""Points, checkpoints with their files, and restores."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from mulligan.model.storage import Digest, Problem

Path = tuple[str | int, ...]
"""A path in the state: dictionary keys and list indexes from the root."""

CheckpointKind = Literal["routine", "pre_operation", "recovery", "manual"]
"""The kinds of checkpoints that Mulligan takes itself; programs may use kinds of their own."""

Verdict = Literal["good", "bad"]
"""What a mark says of a checkpoint."""

UndoMode = Literal["undo", "redo"]

RestoreMode = Literal["restore", "undo", "redo"]
"""Which call brought something back."""

Rollback = Literal["both", "state", "workspace", "none"]
"""What an operation restores when it fails."""

ValueChange = Literal["added", "removed", "changed"]
"""How a value of the state differs between two points."""

PathChange = Literal["added", "removed", "changed", "attributes", "renamed"]
"""How a file differs between two points."""


class Cost(msgspec.Struct, frozen=True):
    """What taking a checkpoint cost before its commit: time, and bytes of new captured objects."""

    ms: float
    bytes: int


class Environment(msgspec.Struct, frozen=True):
    """The environment a checkpoint was taken in; variables by allow-list, never secrets."""

    platform: str
    python: str
    host: str
    tools: dict[str, str]
    variables: dict[str, str]
    git_head: str | None = None


class LeftOut(msgspec.Struct, frozen=True, order=True):
    """A path that a checkpoint does not hold, and why."""

    path: str
    rule: str


class Changing(msgspec.Struct, frozen=True, order=True):
    """A path that other programs changed during its capture, and the consequence.

    ``torn`` means that the checkpoint may hold a mix of several states of it.
    """

    path: str
    reason: str
    torn: bool


WHOLE_WORKSPACE = "."
"""The path that stands for all files in the coverage of a checkpoint that holds none."""


class Coverage(msgspec.Struct, frozen=True):
    """What a checkpoint holds of a workspace, and everything it does not.

    ``files`` includes symlinks; ``bytes`` is the size of all regular files; ``root`` is the
    directory it was captured from; ``changing`` is what it holds but may be inconsistent.
    """

    files: int
    directories: int
    bytes: int
    left_out: list[LeftOut]
    root: str = ""
    changing: list[Changing] = []

    @property
    def refused(self) -> str | None:
        """Why no file of the workspace is in it; None if the files were captured."""
        is_all = len(self.left_out) == 1 and self.left_out[0].path == WHOLE_WORKSPACE
        return self.left_out[0].rule if is_all else None


class Checkpoint(msgspec.Struct, frozen=True):
    """A named position in a session's journal.

    ``data`` is what the program that took it keeps with it; empty if it gave none.
    """

    id: str
    session: str
    seq: int
    time: datetime
    actor: str
    kind: str
    label: str | None
    note: str | None
    parent: str | None
    keyframe: Digest | None
    environment: Environment
    format: int
    schema: int
    cost: Cost
    safety: bool = False
    workspace: Digest | None = None
    coverage: Coverage | None = None
    key: str | None = None
    data: dict[str, Any] = {}


class HeldFiles(msgspec.Struct, frozen=True):
    """The files of a point: their tree, its coverage, and the event that holds them.

    ``checkpoint`` is the id if that event is a checkpoint; None for a restore.
    """

    session: str
    seq: int
    time: datetime
    tree: Digest
    coverage: Coverage | None
    checkpoint: str | None = None

    @property
    def left_out(self) -> set[str]:
        """The paths that it does not cover."""
        return {left.path for left in self.coverage.left_out} if self.coverage else set()


class Point(msgspec.Struct, frozen=True):
    """A place on a timeline: the session, the seq, and the checkpoint there if one was named."""

    session: str
    seq: int
    checkpoint: str | None = None


class Restored(msgspec.Struct, frozen=True):
    """What a restore did: ``mode`` is restore, undo or redo; ``safety`` holds the state before.

    ``workspace`` lists the files that were part of it: None for all. ``files`` counts the paths
    that were restored; ``problems`` are those that could not be. ``purged`` are paths whose content
    was removed from all history: they were left as they are.
    """

    mode: RestoreMode
    point: Point
    only: tuple[Path, ...] | None
    safety: Checkpoint
    seq: int
    files: int = 0
    problems: tuple[Problem, ...] = ()
    workspace: tuple[str, ...] | None = ()
    purged: tuple[LeftOut, ...] = ()


class RestoreOrigin(msgspec.Struct, frozen=True):
    """What was there before a restore: the tree, and the seq of the checkpoint that holds it."""

    tree: Digest
    safety: int

    @property
    def seq(self) -> int:
        """The seq of the event ``restore.begun``, which follows that checkpoint directly."""
        return self.safety + 1


class PendingRestore(msgspec.Struct, frozen=True):
    """A restore of files that has started and not ended, and everything needed to finish it.

    ``mode``, ``point`` and ``directory`` say what is restored and where; ``is_running`` whether a
    process is working on it now. ``tree`` is the tree of files to restore; ``only`` and ``paths``
    are the parts of state and files, None for everything. ``held`` is the seq of the checkpoint
    that holds the tree, ``restored`` that of a restore which does. ``present`` is the tree it
    started from; it differs from the origin's once an interrupted restore was started again. With
    ``touch`` the files that change get the present time.
    """

    mode: str
    point: Point
    directory: str
    origin: RestoreOrigin
    tree: Digest
    present: Digest
    only: list[Path] | None = None
    paths: list[tuple[str, ...]] | None = None
    held: int | None = None
    restored: int | None = None
    touch: bool = False
    is_running: bool = False

    @property
    def seq(self) -> int:
        """The seq of the safety checkpoint that holds what was there before."""
        return self.origin.safety


class FileChange(msgspec.Struct, frozen=True):
    """One path that differs between two trees.

    ``change`` is added, removed, changed, attributes (mode, times) or renamed (from ``old_path``).
    Modes and sizes are None where there is nothing; a directory has no size. Bytes that are not
    UTF-8 are escaped in ``path``; ``os_path`` is the path to open, as ``os.fsdecode`` returns it.
    """

    path: str
    change: PathChange
    kind: str
    old_path: str | None = None
    old_mode: int | None = None
    mode: int | None = None
    old_size: int | None = None
    size: int | None = None
    os_path: str = ""


class OpenFile(msgspec.Struct, frozen=True, order=True):
    """A path that a program uses: ``mode`` is write, mapped (for writing), or cwd."""

    pid: int
    command: str
    path: str
    mode: str


DIFFERS = "it is not what the checkpoint says"
"""The reason if the result of a finished restore differs from the checkpoint."""


class Plan(msgspec.Struct, frozen=True):
    """What a restore would do, computed without doing it.

    ``left_alone`` is what no checkpoint covers and a restore does not touch. ``conflicts`` are
    later changes of the same directory by other sessions, which would be lost.
    ``caches`` are removed, because tools derived them from files that change or are deleted.
    ``builds`` are directories that a user rule leaves out: files built in them from changed sources
    may look up to date, since files are restored with their times. ``open_files`` are used by
    programs that would continue with files that no longer have a name. ``problems`` are paths that
    cannot be restored: something that no checkpoint covers is in the way. ``purged`` are paths
    whose content was removed from all history: what is there is left as it is.
    """

    point: Point
    files: tuple[FileChange, ...]
    left_alone: tuple[LeftOut, ...]
    conflicts: tuple[str, ...]
    caches: tuple[str, ...] = ()
    builds: tuple[str, ...] = ()
    open_files: tuple[OpenFile, ...] = ()
    problems: tuple[Problem, ...] = ()
    purged: tuple[LeftOut, ...] = ()

    def __bool__(self) -> bool:
        """Whether any file would change."""
        return bool(self.files)
