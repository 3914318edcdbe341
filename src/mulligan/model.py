"""The nouns as frozen structs: no I/O, no clock."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NewType

import msgspec

Digest = NewType("Digest", bytes)
"""BLAKE3 of an object's type and canonical bytes: 32 bytes, the only identity of content."""

Path = tuple[str | int, ...]
"""A place in the state: dictionary keys and list indexes from the root."""

CheckpointKind = Literal["routine", "pre_operation", "recovery", "manual"]
"""The kinds of checkpoints that Mulligan takes itself; programs may use kinds of their own."""

Verdict = Literal["good", "bad"]
"""What a mark says of a checkpoint."""

UndoMode = Literal["undo", "redo"]
RestoreMode = Literal["restore", "undo", "redo"]
"""Which call brought something back."""

Rollback = Literal["both", "state", "workspace", "none"]
"""What an operation restores when it fails."""

TaskStatus = Literal["pending", "in_progress", "completed", "failed", "skipped"]
AgentState = Literal["starting", "planning", "working", "waiting", "suspended", "done", "failed"]
Priority = Literal["low", "normal", "high", "urgent"]

ValueChange = Literal["added", "removed", "changed"]
"""How a value of the state differs between two points."""

PathChange = Literal["added", "removed", "changed", "attributes", "renamed"]
"""How a file differs between two points."""

DIGEST_SIZE = 32
ID_SIZE = 16


class ObjectKind:
    """What an object is; the first byte that its digest covers."""

    VALUE = 1
    CHUNK = 2


class NewEvent(msgspec.Struct, frozen=True):
    """An event that has not been given its place yet: a kind and a payload.

    ``payload`` is the encoding of ``value``, and is what the journal keeps.
    """

    kind: str
    payload: bytes
    value: Any


class Event(msgspec.Struct, frozen=True):
    """One immutable fact of a session."""

    session: str
    seq: int
    time: datetime
    actor: str
    epoch: int
    kind: str
    payload: Any
    prev: bytes
    hash: bytes


class ForkOrigin(msgspec.Struct, frozen=True):
    """Where a forked session left its parent."""

    session: int
    seq: int


class SessionRecord(msgspec.Struct, frozen=True):
    """A session as the journal knows it; ``number`` is its key and never reused."""

    number: int
    name: str
    created: datetime
    origin: ForkOrigin | None


class Head(msgspec.Struct, frozen=True):
    """The newest event of a session, and the newest keyframe and checkpoint on its timeline.

    ``keyframe`` is 0 and ``checkpoint`` None while there is none.
    """

    seq: int
    hash: bytes
    time: datetime
    keyframe: int = 0
    checkpoint: tuple[int, str] | None = None


class Lease(msgspec.Struct, frozen=True):
    """A writer's claim on one actor of a session; the highest epoch is the valid one."""

    actor: str
    epoch: int
    holder: str
    expires: datetime
    released: bool = False


class Cost(msgspec.Struct, frozen=True):
    """What taking a checkpoint cost before its commit: time, and bytes of new objects."""

    ms: float
    bytes: int


class Environment(msgspec.Struct, frozen=True):
    """The surroundings a checkpoint was taken in; variables by allow-list, never secrets."""

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
    """A path that other programs changed while it was captured, and what that means for it.

    ``torn`` says that what the checkpoint holds of it may be from several moments.
    """

    path: str
    reason: str
    torn: bool


class Coverage(msgspec.Struct, frozen=True):
    """What of a workspace a checkpoint holds, and everything it does not.

    ``files`` counts symlinks, too; ``bytes`` is the size of all regular files; ``root`` is the
    directory it was captured from; ``changing`` is what is held and may not be trusted.
    """

    files: int
    directories: int
    bytes: int
    left_out: list[LeftOut]
    root: str = ""
    changing: list[Changing] = []


class Checkpoint(msgspec.Struct, frozen=True):
    """A named position in a session's journal."""

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


class HeldFiles(msgspec.Struct, frozen=True):
    """The files of a point: their tree, what it covers, and the event that holds them.

    ``checkpoint`` is the id of the checkpoint that this event is; None for a restore.
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
    """Any place on a timeline: the session, the seq, and the checkpoint there if one was named."""

    session: str
    seq: int
    checkpoint: str | None = None


class Restored(msgspec.Struct, frozen=True):
    """What a restore did: ``mode`` is restore, undo or redo; ``safety`` holds what was before.

    ``workspace`` says which files were part of it: None for all of them. ``files`` counts the
    paths that were brought back; ``problems`` are those that could not be.
    """

    mode: RestoreMode
    point: Point
    only: tuple[Path, ...] | None
    safety: Checkpoint
    seq: int
    files: int = 0
    problems: tuple[Problem, ...] = ()
    workspace: tuple[str, ...] | None = ()


class Pending(msgspec.Struct, frozen=True):
    """A restore of files that was begun and not ended: its mode, its point, and where.

    ``seq`` is that of the safety checkpoint that holds what was there before; ``is_running`` says
    whether a process is at it right now.
    """

    mode: str
    point: Point
    directory: str
    seq: int
    is_running: bool = False


class Task(msgspec.Struct, frozen=True):
    """A subtask: ``status`` is pending, in_progress, completed, failed or skipped.

    ``after`` names what has to be done before, ``order`` is its place in the plan, ``data`` is
    the user's own.
    """

    id: str
    title: str
    status: TaskStatus
    order: int
    after: tuple[str, ...] = ()
    parent: str | None = None
    owner: str | None = None
    attempts: int = 0
    progress: float | None = None
    note: str | None = None
    result: Any = None
    error: str | None = None
    data: Any = None


class Message(msgspec.Struct, frozen=True):
    """A message in an agent's mailbox.

    ``redelivered`` says that an earlier process received it and did not live to acknowledge it.
    """

    id: str
    to: str
    sender: str
    subject: str
    body: Any
    priority: Priority
    requires_ack: bool
    sent: datetime
    redelivered: bool = False


class Location(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where an object lies: the frame of a pack, and its slot in the frame's directory."""

    pack: int
    offset: int
    length: int
    slot: int


class FileChange(msgspec.Struct, frozen=True):
    """One path that differs between two trees.

    ``change`` is added, removed, changed, attributes (mode, times) or renamed (``old_path`` says
    from where). Modes and sizes are None where there is nothing; a directory has no size. Bytes
    that are not UTF-8 are escaped in ``path``; ``os_path`` is the path to open, as ``os.fsdecode``
    makes it.
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
    """A path that a program uses: ``mode`` is write, mapped (to be written), or cwd."""

    pid: int
    command: str
    path: str
    mode: str


DIFFERS = "it is not what the checkpoint says"
"""The reason when a restore was done, and a look at the result found something else."""


class Problem(msgspec.Struct, frozen=True):
    """One thing that ``verify`` found broken, or that a restore could not bring back."""

    what: str
    where: str
    detail: str


class Plan(msgspec.Struct, frozen=True):
    """What a restore would do, worked out without doing it.

    ``left_alone`` is what no checkpoint covers and a restore does not touch; ``conflicts`` are
    other sessions' later checkpoints of the same directory, whose changes would go. ``caches`` are
    removed, because their tools made them of files that change or go. ``builds`` are directories
    that a rule of the user's leaves out: what was built in them of files that change may look up to
    date, since files come back with their times. ``open_files`` are used by programs that would go
    on with files which have no name any more. ``problems`` are paths that cannot be brought back:
    something that no checkpoint covers is in their place.
    """

    point: Point
    files: tuple[FileChange, ...]
    left_alone: tuple[LeftOut, ...]
    conflicts: tuple[str, ...]
    caches: tuple[str, ...] = ()
    builds: tuple[str, ...] = ()
    open_files: tuple[OpenFile, ...] = ()
    problems: tuple[Problem, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is anything to do to files."""
        return bool(self.files)


class Report(msgspec.Struct, frozen=True):
    """What ``verify`` looked at and found."""

    full: bool
    sessions: int
    events: int
    checkpoints: int
    keyframes: int
    objects: int
    packs: int
    unreferenced_bytes: int
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...] = ()
    """What may be the trace of a loss, or of nothing worse than a crash."""

    @property
    def ok(self) -> bool:
        """Whether nothing is broken."""
        return not self.problems
