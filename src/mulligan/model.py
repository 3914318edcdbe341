"""The core data types as frozen structs: no I/O, no clock."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NewType

import msgspec

Digest = NewType("Digest", bytes)
"""BLAKE3 of an object's kind and canonical bytes: 32 bytes, the only identity of content."""

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
    """The kind of an object; the first byte that its digest covers."""

    VALUE = 1
    CHUNK = 2


class NewEvent(msgspec.Struct, frozen=True):
    """An event that is not yet in the journal: a kind and a payload.

    ``payload`` is the encoding of ``value``, and is what the journal stores.
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
    """Where a forked session branched off its parent."""

    session: int
    seq: int


class SessionRecord(msgspec.Struct, frozen=True):
    """A session in the journal; ``number`` is its key and is never reused."""

    number: int
    name: str
    created: datetime
    origin: ForkOrigin | None


class Head(msgspec.Struct, frozen=True):
    """The newest event of a session, and the newest keyframe and checkpoint on its timeline.

    ``keyframe`` is 0 and ``checkpoint`` None if there is none.
    """

    seq: int
    hash: bytes
    time: datetime
    keyframe: int = 0
    checkpoint: tuple[int, str] | None = None


class Holder(msgspec.Struct, frozen=True):
    """A process among all that ever ran: its machine, its number, and when it started.

    ``started`` is in ticks since boot, 0 where that was not known. ``process`` is 0 for a holder
    that names no process; ``machine`` is then all that was said of it.
    """

    machine: str
    process: int = 0
    started: int = 0

    def __str__(self) -> str:
        return f"{self.machine}/{self.process}/{self.started}" if self.process else self.machine

    @classmethod
    def parse(cls, text: str) -> Holder:
        """Return the holder that ``str`` made the text of; any other text names no process."""
        machine, *numbers = text.rsplit("/", 2)
        if len(numbers) == 2 and all(n.isascii() and n.isdecimal() for n in numbers):
            process, started = map(int, numbers)
            if process:
                return cls(machine, process, started)
        return cls(text)


class Lease(msgspec.Struct, frozen=True):
    """A writer's claim on one actor of a session; the highest epoch is the valid one."""

    actor: str
    epoch: int
    holder: Holder
    expires: datetime
    released: bool = False


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
    that were restored; ``problems`` are those that could not be.
    """

    mode: RestoreMode
    point: Point
    only: tuple[Path, ...] | None
    safety: Checkpoint
    seq: int
    files: int = 0
    problems: tuple[Problem, ...] = ()
    workspace: tuple[str, ...] | None = ()


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


class Task(msgspec.Struct, frozen=True):
    """A subtask: ``status`` is pending, in_progress, completed, failed or skipped.

    ``after`` names the tasks that must be done before, ``order`` is its position in the plan,
    ``data`` belongs to the user.
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

    ``redelivered`` means that an earlier process received it and ended before acknowledging it.
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
    """Where an object is stored: the frame of a pack, and its slot in the frame's directory."""

    pack: int
    offset: int
    length: int
    slot: int


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


class Problem(msgspec.Struct, frozen=True):
    """Something that ``verify`` found broken, or that could not be restored."""

    what: str
    where: str
    detail: str


class Plan(msgspec.Struct, frozen=True):
    """What a restore would do, computed without doing it.

    ``left_alone`` is what no checkpoint covers and a restore does not touch. ``conflicts`` are
    later checkpoints of the same directory by other sessions, whose changes would be lost.
    ``caches`` are removed, because tools derived them from files that change or are deleted.
    ``builds`` are directories that a user rule leaves out: files built in them from changed sources
    may look up to date, since files are restored with their times. ``open_files`` are used by
    programs that would continue with files that no longer have a name. ``problems`` are paths that
    cannot be restored: something that no checkpoint covers is in the way.
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
        """Whether any file would change."""
        return bool(self.files)


class Report(msgspec.Struct, frozen=True):
    """What ``verify`` checked and found."""

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
    """Possible traces of a loss, or of nothing worse than a crash."""

    @property
    def ok(self) -> bool:
        """Whether nothing is broken."""
        return not self.problems
