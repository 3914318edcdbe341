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
from mulligan.errors import DamagedJournal
from mulligan.model import DIGEST_SIZE, ID_SIZE, Head, Holder, Lease, Location

T = TypeVar("T")

NUMBER = struct.Struct(">I")
PLACE = struct.Struct(">IQ")
LENGTH = struct.Struct(">Q")
LOCATION = struct.Struct(">IQII")
_HEAD = struct.Struct(f">Q{DIGEST_SIZE}sqQQ{ID_SIZE}s")
CHECKSUM_SIZE = 8
STORE = b"store"
"""The key of the store's id in the table ``meta``."""

MAX_SEQ = 2**64 - 2

encode = msgspec.msgpack.encode


def decode_head(value: bytes) -> Head:
    seq, hash_, micros, keyframe, checkpoint, identity = _HEAD.unpack(value)
    latest = (checkpoint, identity.hex()) if checkpoint else None
    return Head(seq, hash_, codec.from_micros(micros), keyframe, latest)


def encode_head(head: Head) -> bytes:
    seq, identity = head.checkpoint or (0, "")
    micros, latest = codec.to_micros(head.time), bytes.fromhex(identity)
    return _HEAD.pack(head.seq, head.hash, micros, head.keyframe, seq, latest)


def session_number(key: bytes) -> int:
    if len(key) != NUMBER.size:
        raise DamagedJournal("A key of the journal's table 'sessions' is damaged.")
    return int(NUMBER.unpack(key)[0])


def clock_key(number: int) -> bytes:
    return b"clock" + NUMBER.pack(number)


def label_key(number: int, label: str) -> bytes:
    return NUMBER.pack(number) + label.encode() + b"\x00"


def checksum(table: str, key: bytes, value: bytes) -> bytes:
    """Return the checksum of a small record, which also covers its table and key."""
    return blake3(b"%s\x00%s\x00%s" % (table.encode(), key, value)).digest(length=CHECKSUM_SIZE)


def opened(table: str, key: bytes, value: bytes) -> bytes:
    """Return a small record without its checksum after checking it."""
    content = value[:-CHECKSUM_SIZE]
    if value[-CHECKSUM_SIZE:] != checksum(table, key, content):
        raise DamagedJournal(f"A record of the journal's table {table!r} is damaged.")
    return content


def decode_location(value: bytes) -> Location:
    if len(value) != LOCATION.size:
        raise DamagedJournal("A record of the journal's table 'objects' is damaged.")
    return Location(*LOCATION.unpack(value))


def decode(value: bytes, type_: type[T], table: str) -> T:
    try:
        return msgspec.msgpack.decode(value, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedJournal(f"A record of the table {table!r} cannot be read.") from error


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
