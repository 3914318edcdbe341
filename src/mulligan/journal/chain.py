"""The hash chain: how an event is encoded, and how its hash proves its place."""

from __future__ import annotations

import struct
from datetime import datetime
from typing import Any

import msgspec
from blake3 import blake3

from mulligan import codec
from mulligan.errors import DamagedJournal, DamageError
from mulligan.model import DIGEST_SIZE, Digest, Event, NewEvent, Tombstone

GENESIS = bytes(DIGEST_SIZE)
"""The previous hash of the first event of a session."""

LOST = "event.lost"
"""The kind of the event in the place of one that was lost."""

# Smaller bodies shrink too little to be worth the time in every append and replay.
_COMPRESS_FROM = 1024
_PLAIN, _ZSTD, _UNPROVEN, _BURIED = b"\x00", b"\x01", b"\x02", b"\x03"
_CHECK_SIZE = 16
_BODY = DIGEST_SIZE + len(_PLAIN)
"""Where the body of a record starts, or its size if it is compressed."""
_SIZE = struct.Struct("<I")
_SEQ = struct.Struct(">Q")


def chain(prev: bytes, seq: int, body: bytes) -> bytes:
    """Return an event's hash, which covers everything before it through ``prev``."""
    # The seq is hashed too, so an intact record cannot pass for another position.
    return blake3(prev + _SEQ.pack(seq) + body).digest()


def encode_body(new: NewEvent, *, time: datetime, actor: str, epoch: int) -> bytes:
    """Return the canonical bytes of an event, without its place."""
    payload = msgspec.Raw(new.payload)
    return codec.encode([codec.to_micros(time), actor, epoch, new.kind, payload])


def pack_record(hash_: bytes, body: bytes) -> bytes:
    """Return the stored record: the hash, then the body, compressed if that makes it smaller."""
    # The hash covers the uncompressed body, so the compression may change between versions.
    if len(body) >= _COMPRESS_FROM:
        squeezed = codec.compress_small(body)
        if len(squeezed) + _SIZE.size < len(body):
            return hash_ + _ZSTD + _SIZE.pack(len(body)) + squeezed
    return hash_ + _PLAIN + body


def buried_record(hash_: bytes, body: bytes) -> bytes:
    """Return the record of an event of which a purge left this body; its hash is the old one."""
    return hash_ + _BURIED + pack_record(hash_, body)[DIGEST_SIZE:]


def is_buried(record: bytes) -> bool:
    """Whether a purge changed the body of a record."""
    return record[DIGEST_SIZE : DIGEST_SIZE + 1] == _BURIED


def body_digest(body: bytes) -> Digest:
    """Return what a tombstone says of the body that a purge left."""
    return Digest(blake3(body).digest())


def read_buried(
    session: str, seq: int, prev: bytes, record: bytes, tombstone: Tombstone | None
) -> Event:
    """Return an event that a purge changed, after checking it against its tombstone.

    The hash does not cover what is left of it. That it follows ``prev`` is known from before the
    purge; the next event proves that the hash itself is the old one.
    """
    where = _place(session, seq)
    if tombstone is None:
        raise DamagedJournal(f"The record of {where} was changed, and no purge names it.")
    body = _body(record[:DIGEST_SIZE] + record[_BODY:], session, seq)
    if body_digest(body) != tombstone.replacement:
        raise DamagedJournal(f"The record of {where} is not what its purge left.")
    time, actor, epoch, kind, payload = _fields(body, session, seq)
    moment, hash_ = codec.from_micros(time), record_hash(record)
    return Event(session, seq, moment, actor, epoch, kind, payload, prev, hash_, tombstone.purge)


def unproven_record(seq: int, record: bytes) -> bytes:
    """Return the record of an event whose predecessor was lost, so that no hash proves it.

    It has a checksum of its own instead. A repair writes such records, and nothing else does.
    """
    content = record[DIGEST_SIZE:]
    if is_buried(record):
        # Without its tombstone, nothing proves what a purge left, either.
        content = content[len(_BURIED) :]
    return record_hash(record) + _UNPROVEN + _check(seq, content) + content


def is_unproven(record: bytes) -> bool:
    """Whether a repair wrote a record that the hash chain cannot prove."""
    return record[DIGEST_SIZE:_BODY] == _UNPROVEN


def proven_hash(prev: bytes, seq: int, record: bytes) -> bytes | None:
    """Return the hash that a record must have after ``prev``; None if its body is unreadable."""
    try:
        return chain(prev, seq, _body(record, "?", seq))
    except DamagedJournal:
        return None


def fields_of(record: bytes, seq: int) -> list[Any]:
    """Return time, actor, epoch, kind and payload of a record, without a look at the chain."""
    session = "?"
    if is_unproven(record):
        record = _checked(record, session, seq)
    if is_buried(record):
        return _fields(record_body(record), session, seq)
    return _fields(_body(record, session, seq), session, seq)


def _check(seq: int, content: bytes) -> bytes:
    return blake3(_SEQ.pack(seq) + content).digest(length=_CHECK_SIZE)


def _checked(record: bytes, session: str, seq: int) -> bytes:
    """Return an unproven record without its checksum after checking it."""
    end = _BODY + _CHECK_SIZE
    if record[_BODY:end] != _check(seq, record[end:]):
        where = _place(session, seq)
        raise DamagedJournal(f"The record of {where} does not match its checksum.")
    return record[:DIGEST_SIZE] + record[end:]


def _body(record: bytes, session: str, seq: int) -> bytes:
    """Return the body of a record of form 0 or 1."""
    is_plain = record[DIGEST_SIZE:_BODY] == _PLAIN
    return record[_BODY:] if is_plain else _unpacked(record, session, seq)


def record_body(record: bytes) -> bytes:
    """Return the body of a record of any form, uncompressed and unchecked."""
    hash_, content = record_hash(record), record[DIGEST_SIZE:]
    if content[:1] == _BURIED:
        content = content[1:]
    elif content[:1] == _UNPROVEN:
        content = content[1 + _CHECK_SIZE :]
    return _body(hash_ + content, "?", 0)


def record_hash(record: bytes) -> bytes:
    """Return the hash stored in a record, unchecked."""
    return record[:DIGEST_SIZE]


def read_record(session: str, seq: int, prev: bytes, record: bytes) -> Event:
    """Return the event of a record after checking it against the previous hash."""
    # Short on purpose: every replay calls this for each of its events.
    hash_, form = record[:DIGEST_SIZE], record[DIGEST_SIZE:_BODY]
    if form == _UNPROVEN:
        record = _checked(record, session, seq)
    body = record[_BODY:] if form == _PLAIN else _body(record, session, seq)
    # Checked before the fields are decoded: the decoder only sees bytes that were written.
    if form != _UNPROVEN and chain(prev, seq, body) != hash_:
        raise DamagedJournal(f"The hash chain breaks at {_place(session, seq)}.")
    time, actor, epoch, kind, payload = _fields(body, session, seq)
    return Event(session, seq, codec.from_micros(time), actor, epoch, kind, payload, prev, hash_)


def _unpacked(record: bytes, session: str, seq: int) -> bytes:
    """Return the body of a compressed record."""
    where = _place(session, seq)
    if record[DIGEST_SIZE:_BODY] != _ZSTD:
        raise DamagedJournal(f"The record of {where} has an unknown form.")
    start = _BODY + _SIZE.size
    try:
        (size,) = _SIZE.unpack(record[_BODY:start])
        return codec.decompress(record[start:], size)
    except (ValueError, struct.error) as error:
        raise DamagedJournal(f"The record of {where} cannot be read: {error}.") from error


def _fields(body: bytes, session: str, seq: int) -> list[Any]:
    try:
        fields = codec.decode(body)
    except DamageError as error:
        where = _place(session, seq)
        raise DamagedJournal(f"The record of {where} cannot be read: {error}") from error
    if not isinstance(fields, list) or len(fields) != 5:
        raise DamagedJournal(f"The record of {_place(session, seq)} has the wrong fields.")
    return fields


def _place(session: str, seq: int) -> str:
    return f"event #{seq} of session {session!r}"
