"""Keys and records of the journal's tables: how each is encoded, and how it is checked.

FORMAT.md describes the same bytes. Every small record ends in a checksum that also covers its table
and its key, so a record that was copied to another place is refused.
"""

from __future__ import annotations

import struct
from datetime import datetime
from functools import lru_cache
from typing import TypeVar

import msgspec
from blake3 import blake3

from mulligan import codec
from mulligan.decoding import ready
from mulligan.errors import DamagedJournal
from mulligan.model import (
    DIGEST_SIZE,
    ID_SIZE,
    Digest,
    Fold,
    Head,
    Holder,
    Lease,
    Location,
    Tombstone,
)

T = TypeVar("T")

NUMBER = struct.Struct(">I")
PLACE = struct.Struct(">IQ")
LENGTH = struct.Struct(">Q")
LOCATION = struct.Struct(">IQII")
_FOLD = struct.Struct(f">Qqq{DIGEST_SIZE}s{DIGEST_SIZE}s")
_HEAD = struct.Struct(f">Q{DIGEST_SIZE}sqQQ{ID_SIZE}s")
_TOMBSTONE = struct.Struct(f">I{DIGEST_SIZE}s")
_NONE = bytes(DIGEST_SIZE)
_COPY = struct.Struct(f">Q{DIGEST_SIZE}s")
# Detects accidents, not attacks, so 8 bytes are enough.
CHECKSUM_SIZE = 8
STORE = b"store"
"""The key of the store's id in the table ``meta``."""

COLLECTION = b"collection"
"""The key in ``meta`` of the state of the garbage collection."""

FORGOTTEN = b"forgotten"
"""The key in ``meta`` of the highest number of a removed area."""

DAMAGE = b"damage"
"""The key in ``meta`` of how often damage was noted."""

DELETED = b"deleted"
"""The key in ``meta`` of the highest number of a session that was removed."""

ERASE = b"erase"
"""The key in ``meta`` of how often something was deleted, and where bytes may be left."""

# One less than a key can hold, because scans exclude their upper bound.
MAX_SEQ = 2**64 - 2

encode = msgspec.msgpack.encode


class RawRecord(msgspec.Struct, frozen=True, order=True, gc=False):
    """A key and a value that were read somewhere, not yet checked; the table is unknown.

    ``is_current``: it is known to be the newest version. Others may be older ones.
    """

    key: bytes
    value: bytes
    is_current: bool


def damaged_record(table: str) -> DamagedJournal:
    """Return the error for a record that cannot be what was written."""
    error = DamagedJournal(f"A record of the journal's table {table!r} is damaged.")
    error.table = table
    return error


def decode_head(value: bytes) -> Head:
    seq, hash_, micros, keyframe, checkpoint, identity = _HEAD.unpack(value)
    latest = (checkpoint, identity.hex()) if checkpoint else None
    return Head(seq, hash_, codec.from_micros(micros), keyframe, latest)


def encode_head(head: Head) -> bytes:
    seq, identity = head.checkpoint or (0, "")
    micros, latest = codec.to_micros(head.time), bytes.fromhex(identity)
    return _HEAD.pack(head.seq, head.hash, micros, head.keyframe, seq, latest)


def decode_fold(last: int, value: bytes) -> Fold:
    if len(value) != _FOLD.size:
        raise damaged_record("folds")
    first, started, ended, hash_, keyframe = _FOLD.unpack(value)
    times = codec.from_micros(started), codec.from_micros(ended)
    return Fold(first, last, *times, hash_, Digest(keyframe))


def encode_fold(fold: Fold) -> bytes:
    started, ended = codec.to_micros(fold.started), codec.to_micros(fold.ended)
    return _FOLD.pack(fold.first, started, ended, fold.hash, fold.keyframe)


def decode_tombstone(value: bytes) -> Tombstone:
    if len(value) != _TOMBSTONE.size:
        raise DamagedJournal("A record of the journal's table 'purged' is damaged.")
    purge, replacement = _TOMBSTONE.unpack(value)
    return Tombstone(purge, None if replacement == _NONE else Digest(replacement))


def encode_tombstone(tombstone: Tombstone) -> bytes:
    return _TOMBSTONE.pack(tombstone.purge, tombstone.replacement or _NONE)


def decode_copy(value: bytes) -> tuple[int, Digest]:
    """Return the seq of the first event that a copy has, and the copy's digest."""
    if len(value) != _COPY.size:
        raise damaged_record("copies")
    first, digest = _COPY.unpack(value)
    return first, Digest(digest)


def encode_copy(first: int, digest: Digest) -> bytes:
    """Return the record of a copy of events."""
    return _COPY.pack(first, digest)


def session_number(key: bytes) -> int:
    if len(key) != NUMBER.size:
        raise damaged_record("sessions")
    return int(NUMBER.unpack(key)[0])


def clock_key(number: int) -> bytes:
    return b"clock" + NUMBER.pack(number)


def label_key(number: int, label: str) -> bytes:
    return NUMBER.pack(number) + label.encode() + b"\x00"


def foreign_key(scope: int, key: str) -> bytes:
    """Return the key of a foreign key in its table: keys of any length have entries of one."""
    return NUMBER.pack(scope) + codec.key_digest(key)


def checksum(table: str, key: bytes, value: bytes) -> bytes:
    """Return the checksum of a small record, which also covers its table and key."""
    return blake3(b"%s\x00%s\x00%s" % (table.encode(), key, value)).digest(length=CHECKSUM_SIZE)


def opened(table: str, key: bytes, value: bytes) -> bytes:
    """Return a small record without its checksum after checking it."""
    content = value[:-CHECKSUM_SIZE]
    if value[-CHECKSUM_SIZE:] != checksum(table, key, content):
        raise damaged_record(table)
    return content


def decode_location(value: bytes) -> Location:
    if len(value) != LOCATION.size:
        raise damaged_record("objects")
    return Location(*LOCATION.unpack(value))


def decode(value: bytes, type_: type[T], table: str) -> T:
    try:
        return msgspec.msgpack.decode(value, type=ready(type_))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged_record(table) from error


class _StoredLease(msgspec.Struct, frozen=True):
    """A lease as it is stored, with its holder as text."""

    actor: str
    epoch: int
    holder: str
    expires: datetime
    released: bool


def encode_lease(lease: Lease) -> bytes:
    """Return the record of a lease."""
    holder = str(lease.holder)
    return encode(_StoredLease(lease.actor, lease.epoch, holder, lease.expires, lease.released))


@lru_cache(maxsize=64)
def decode_lease(value: bytes) -> Lease:
    """Return the lease of a record.

    Cached: every append reads the lease of its actor, which changes only when it is renewed.
    """
    found = decode(value, _StoredLease, "leases")
    holder = Holder.parse(found.holder)
    return Lease(found.actor, found.epoch, holder, found.expires, found.released)


def decode_text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise DamagedJournal(f"A name in the journal is not UTF-8: {key!r}.") from error
