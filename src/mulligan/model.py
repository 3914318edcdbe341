"""The core data types as frozen structs: no I/O, no clock."""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum
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

EffectKind = Literal["local", "idempotent", "reversible", "irreversible"]
"""How far an effect reaches: local ones are undone by a restore, idempotent ones may be repeated,
reversible ones have a compensation."""

EffectStatus = Literal[
    "intended",
    "approved",
    "denied",
    "done",
    "failed",
    "in_doubt",
    "compensated",
    "left_behind",
]
Stakes = Literal["low", "normal", "high"]
Approval = Literal["auto", "ask", "deny"]
Repeat = Literal["reuse", "ask", "allow"]
"""What is done when an effect was done beyond the point that a session went back to."""

CallStatus = Literal["called", "returned", "failed", "in_doubt"]

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
    EVENTS = 3


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
    purge: int | None = None
    """The purge that replaced a part of it, if one did."""


class Purge(msgspec.Struct, frozen=True):
    """A purge: content that was removed from all history; when, by whom and why.

    ``finished`` is when its bytes were gone from the files of the store, None before that.
    """

    number: int
    time: datetime
    by: str
    reason: str
    finished: datetime | None = None

    def __str__(self) -> str:
        why = f": {self.reason}" if self.reason else ""
        return f"purged {self.time:%Y-%m-%d} by {self.by}{why}"


class Tombstone(msgspec.Struct, frozen=True):
    """What a purge left of an object or of an event: the purge, and the digest of a replacement.

    An object without a replacement is gone. Of an event, it is BLAKE3 of the body that remains.
    """

    purge: int
    replacement: Digest | None


class ForkOrigin(msgspec.Struct, frozen=True):
    """Where a forked session branched off its parent."""

    session: int
    seq: int


class SessionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session in the journal; ``number`` is never reused, ``key`` is its foreign key.

    ``deleted`` is when it was deleted; what its forks need of it is still there.
    """

    number: int
    name: str
    created: datetime
    origin: ForkOrigin | None
    key: str | None = None
    deleted: datetime | None = None


class Head(msgspec.Struct, frozen=True):
    """The newest event of a session, and the newest keyframe and checkpoint on its timeline.

    ``keyframe`` is 0 and ``checkpoint`` None if there is none.
    """

    seq: int
    hash: bytes
    time: datetime
    keyframe: int = 0
    checkpoint: tuple[int, str] | None = None


class Fold(msgspec.Struct, frozen=True):
    """What remains of the events ``first..last`` of a session that were folded away.

    ``started`` and ``ended`` are the times of these two events. The chain continues from ``hash``,
    that of event ``last``; ``keyframe`` is the digest of the document after it.
    """

    first: int
    last: int
    started: datetime
    ended: datetime
    hash: bytes
    keyframe: Digest


class EventsCopied(msgspec.Struct, frozen=True):
    """An object with a copy of events of a session; 0 to 0 is that of folds and prunings."""

    session: int
    first: int
    last: int
    digest: Digest


class Erasure(IntEnum):
    """What of the storage may have bytes of something that was deleted."""

    NOTHING = 0
    JOURNAL = 1
    ALL = 2


class Deletions(msgspec.Struct, frozen=True):
    """How often something was deleted, and where bytes of it may be left."""

    count: int = 0
    left: Erasure = Erasure.NOTHING


CollectionPhase = Literal["idle", "mark", "sweep"]
"""What the garbage collection is at; see docs/design/0006-upkeep.md."""


class Collection(msgspec.Struct, frozen=True):
    """Where the garbage collection stands: its phase, and how many collections there were.

    Digests that were looked up under another ``count`` may have been removed since.
    """

    count: int = 0
    phase: CollectionPhase = "idle"


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


class Question(msgspec.Struct, frozen=True):
    """A request for approval, and its answer: ``by`` is a person, ``timeout`` or ``rule``."""

    at: datetime
    expires: datetime | None = None
    by: str | None = None
    answered: datetime | None = None
    note: str | None = None


class Effect(msgspec.Struct, frozen=True):
    """An act on the outside world, as the ledger of a session has it.

    ``intent`` is what is to be done, as approved; ``seq`` is the event that first named it.
    ``acting`` is the process that acts or acted. ``undo`` says how it is compensated: a command, or
    True for a function of the program. ``is_pending`` says that it waits for approval.
    """

    id: str
    name: str
    kind: EffectKind
    status: EffectStatus
    intent: Any = None
    key: str | None = None
    agent: str = ""
    task: str | None = None
    stakes: Stakes = "normal"
    at: datetime | None = None
    seq: int = 0
    attempts: int = 0
    result: Any = None
    error: str | None = None
    question: Question | None = None
    acting: str | None = None
    undo: list[str] | bool = False

    @property
    def is_pending(self) -> bool:
        """Whether it waits for approval."""
        return self.status == "intended" and self.acting is None and self.question is not None


class EffectPlan(msgspec.Struct, frozen=True):
    """What going back to a point means for the effects after it.

    ``compensated`` are undone, in this order; ``left_behind`` stay in the world and have to be
    accepted; ``repeatable`` stay, too, and may happen again.
    """

    compensated: tuple[Effect, ...] = ()
    left_behind: tuple[Effect, ...] = ()
    repeatable: tuple[Effect, ...] = ()

    def __bool__(self) -> bool:
        """Whether there are effects after the point."""
        return bool(self.compensated or self.left_behind or self.repeatable)


class EffectRule(msgspec.Struct, frozen=True, kw_only=True):
    """What is decided about the effects whose name matches: None leaves it to later rules.

    ``kind`` and ``stakes`` limit the rule to effects of that kind, or of at least those stakes.
    """

    name: str = "*"
    kind: EffectKind | None = None
    stakes: Stakes | None = None
    approval: Approval | None = None
    timeout: float | None = None
    repeat: Repeat | None = None
    identity: tuple[str, ...] | None = None
    checkpoint: bool | None = None


class ToolCall(msgspec.Struct, frozen=True):
    """One call of a tool: what it was given, and its result.

    ``before`` and ``after`` are the checkpoints around it. ``process`` is a process that it
    started, ``files`` are the paths that it changed, where that is known.
    """

    id: str
    name: str
    status: CallStatus
    args: Any = None
    agent: str | None = None
    task: str | None = None
    at: datetime | None = None
    seq: int | None = None
    result: Any = None
    error: str | None = None
    before: str | None = None
    after: str | None = None
    acting: str | None = None
    process: str | None = None
    files: list[str] | None = None


class Location(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where an object is stored: a range of bytes in an area, and a slot in that range.

    An area is a numbered stretch of storage that only grows at its end; see ``objects.protocol``.
    """

    area: int
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


Fault = Literal[
    "table",
    "older",
    "newer",
    "event",
    "record",
    "state",
    "index",
    "pack",
    "foreign",
    "gap",
    "object",
    "needed",
    "purge",
]
"""What a finding of ``verify`` is about; ``Finding`` explains each."""


class Finding(Problem, frozen=True, kw_only=True):
    """Something that ``verify`` found, in words and in the terms of the store.

    Which fields are set depends on ``fault``:

    - ``table``: a table of the journal, or all with ``"*"``, cannot be read (``table``)
    - ``older``: the journal lacks acknowledged commits; ``newer``: an area knows more than it
      (``area``)
    - ``event``: an event is missing, damaged or breaks the chain (``session``, ``seq``)
    - ``record``: what a checkpoint or restore says cannot be read (``session``, ``seq``)
    - ``state``: the state after an event cannot be computed (``session``, ``seq``)
    - ``index``: an entry of a table contradicts the events or objects (``table``, and ``session``,
      ``seq``, ``digest`` and ``location`` where they apply)
    - ``pack``: an area is missing or cannot be opened; ``foreign``: it is of another store
      (``area``)
    - ``gap``: nothing can be read in a stretch of an area (``area``, ``location``)
    - ``object``: a stored object is not what was put (``digest``, ``area``, ``location``)
    - ``needed``: an object cannot be read or found, with the first thing that needs it
      (``digest``, ``session``, ``seq``)
    - ``purge``: a tombstone is not the one that a purge made, or a purge is not finished

    ``session`` is the number of a session.
    """

    fault: Fault
    table: str | None = None
    session: int | None = None
    seq: int | None = None
    digest: Digest | None = None
    area: int | None = None
    location: Location | None = None


class Plan(msgspec.Struct, frozen=True):
    """What a restore would do, computed without doing it.

    ``left_alone`` is what no checkpoint covers and a restore does not touch. ``conflicts`` are
    later checkpoints of the same directory by other sessions, whose changes would be lost.
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
    problems: tuple[Finding, ...]
    warnings: tuple[Finding, ...] = ()
    """Possible traces of a loss, or of nothing worse than a crash."""
    stored_bytes: int = 0
    """The acknowledged bytes in packs."""
    read_bytes: int = 0
    """Those of them that were read and compared with their checksums or digests."""
    sample: float | None = None
    """The part that was chosen to be read, from 0 to 1; None if none was."""
    seed: int | None = None
    """The seed of that choice."""

    @property
    def ok(self) -> bool:
        """Whether nothing is broken."""
        return not self.problems
