"""What the journal and the object storage hold, and what ``verify`` says of them."""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum
from typing import Any, Literal, NewType

import msgspec

Digest = NewType("Digest", bytes)
"""BLAKE3 of an object's kind and canonical bytes: 32 bytes, the only identity of content."""

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

    @property
    def words(self) -> str:
        """The holder for a message; ``str`` is for records."""
        return f"process {self.process} on {self.machine}" if self.process else self.machine

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


class Location(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where an object is stored: a range of bytes in an area, and a slot in that range.

    An area is a numbered stretch of storage that only grows at its end; see ``objects.protocol``.
    """

    area: int
    offset: int
    length: int
    slot: int


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
