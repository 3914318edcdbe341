"""The hash chain: how an event is encoded, and how its hash proves its place."""

from __future__ import annotations

import struct
from datetime import datetime
from typing import Any

import msgspec
from blake3 import blake3

from mulligan import codec
from mulligan.errors import DamagedJournal, DamageError
from mulligan.model import DIGEST_SIZE, Event, NewEvent

GENESIS = bytes(DIGEST_SIZE)
"""The previous hash of the first event of a session."""

_COMPRESS_FROM = 1024
_PLAIN, _ZSTD = b"\x00", b"\x01"
_SIZE = struct.Struct("<I")
_SEQ = struct.Struct(">Q")


def chain(prev: bytes, seq: int, body: bytes) -> bytes:
    """Return an event's hash, which covers everything before it through ``prev``."""
    return blake3(prev + _SEQ.pack(seq) + body).digest()


def encode_body(draft: NewEvent, *, time: datetime, actor: str, epoch: int) -> bytes:
    """Return the canonical bytes of an event, without its place."""
    payload = msgspec.Raw(draft.payload)
    return codec.encode([codec.to_micros(time), actor, epoch, draft.kind, payload])


def pack_record(hash_: bytes, body: bytes) -> bytes:
    """Return the stored record: the hash, then the body, compressed if that makes it smaller."""
    if len(body) >= _COMPRESS_FROM:
        squeezed = codec.compress_small(body)
        if len(squeezed) + _SIZE.size < len(body):
            return hash_ + _ZSTD + _SIZE.pack(len(body)) + squeezed
    return hash_ + _PLAIN + body


def record_hash(record: bytes) -> bytes:
    """Return the hash stored in a record, unchecked."""
    return record[:DIGEST_SIZE]


def read_record(session: str, seq: int, prev: bytes, record: bytes) -> Event:
    """Return the event of a record after checking it against the previous hash."""
    where = f"event #{seq} of session {session!r}"
    body = _body(record, where)
    hash_ = record_hash(record)
    if chain(prev, seq, body) != hash_:
        raise DamagedJournal(f"The hash chain breaks at {where}.")
    time, actor, epoch, kind, payload = _fields(body, where)
    return Event(session, seq, codec.from_micros(time), actor, epoch, kind, payload, prev, hash_)


def _body(record: bytes, where: str) -> bytes:
    start = DIGEST_SIZE + 1
    flag = record[DIGEST_SIZE:start]
    if flag == _PLAIN:
        return record[start:]
    if flag != _ZSTD:
        raise DamagedJournal(f"The record of {where} has an unknown form.")
    body = start + _SIZE.size
    try:
        (size,) = _SIZE.unpack(record[start:body])
        return codec.decompress(record[body:], size)
    except (ValueError, struct.error) as error:
        raise DamagedJournal(f"The record of {where} cannot be read: {error}.") from error


def _fields(body: bytes, where: str) -> list[Any]:
    try:
        fields = codec.decode(body)
    except DamageError as error:
        raise DamagedJournal(f"The record of {where} cannot be read: {error}") from error
    if not isinstance(fields, list) or len(fields) != 5:
        raise DamagedJournal(f"The record of {where} has the wrong fields.")
    return fields
