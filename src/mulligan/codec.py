"""Canonical encoding: every value has exactly one byte sequence.

Values are msgpack with sorted keys and six extension types. ``docs/FORMAT.md`` describes every
byte; this module and ``mulligan.objects`` are its only implementation.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import msgspec
from blake3 import blake3

from mulligan.errors import DamageError
from mulligan.model import DIGEST_SIZE, Digest, ObjectKind

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FORMAT_VERSION = 1
"""The version of everything on disk, written into FORMAT."""

SCHEMA_VERSION = 1
"""The version of event payloads, written into every checkpoint."""

EXT_REF = 1
EXT_DATETIME = 2
EXT_BIGINT = 3
EXT_LIST = 4
EXT_MAP = 5
EXT_ORDERED = 6

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


# Plain classes: msgspec encodes structs and dataclasses natively and would not call the hook that
# turns these into extension types.


class Ref:
    """A value that is a separate object, referred to by its digest."""

    __slots__ = ("digest",)

    def __init__(self, digest: Digest) -> None:
        self.digest = digest


class ListBranch:
    """An inner node of a long list: ``height`` 1 is just above the segments."""

    __slots__ = ("count", "height", "slots")

    def __init__(self, height: int, count: int, slots: list[Any]) -> None:
        self.height = height
        self.count = count
        self.slots = slots


class MapBranch:
    """An inner node of a large dict: sixteen slots by four bits of the key's hash."""

    __slots__ = ("count", "depth", "slots")

    def __init__(self, depth: int, count: int, slots: list[Any]) -> None:
        self.depth = depth
        self.count = count
        self.slots = slots


class OrderedBranch:
    """An inner node of a large dict by sorted keys; ``height`` 1 is just above the leaves.

    Slot n + 1 begins at key n, and ``counts`` are the numbers of entries in the slots.
    """

    __slots__ = ("counts", "height", "keys", "slots")

    def __init__(self, height: int, keys: list[str], counts: list[int], slots: list[Any]) -> None:
        self.height = height
        self.keys = keys
        self.counts = counts
        self.slots = slots

    @property
    def count(self) -> int:
        """Return the number of entries."""
        return sum(self.counts)


_CONCATENATE_BELOW_BYTES = 64 << 10
"""Below this size, concatenating and hashing once is faster than two updates."""


_FIRST = [bytes((kind,)) for kind in range(256)]
"""The byte hashed before the bytes of an object, by kind."""


def digest(kind: int, data: bytes) -> Digest:
    """Return the identity of an object: BLAKE3 of its kind byte and its bytes."""
    if len(data) <= _CONCATENATE_BELOW_BYTES:
        return Digest(blake3(_FIRST[kind] + data).digest())
    hasher = blake3(_FIRST[kind])
    hasher.update(data)
    return Digest(hasher.digest())


def value_digest(data: bytes) -> Digest:
    """Return the digest of an encoded value as an object."""
    return digest(ObjectKind.VALUE, data)


def key_digest(key: str) -> bytes:
    """Return what stands for a foreign key in the index of keys."""
    return blake3(key.encode()).digest()


class _Contexts(threading.local):
    """One compressor per setting and thread: creating one costs as much as compressing 20 KB."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], zstd.ZstdCompressor] = {}

    def compressor(self, level: int, hash_log: int) -> zstd.ZstdCompressor:
        made = self._made.get((level, hash_log))
        if made is None:
            parameter = zstd.CompressionParameter
            options: dict[int, int] = {
                parameter.compression_level: level,
                parameter.hash_log: hash_log,
            }
            made = self._made[level, hash_log] = zstd.ZstdCompressor(options=options)
        return made


_contexts = _Contexts()


def compress_small(data: bytes) -> bytes:
    """Return a zstd frame of a few KB of data, quickly."""
    return compress(data, 1)


def compress_bulk(data: bytes) -> bytes:
    """Return a zstd frame for data that may amount to gigabytes.

    On files this takes a quarter less time than level 3, for 4 % more bytes; with the table of
    level 1, a quarter as large, it would be 5 % more.
    """
    return compress(data, 1, hash_log=16)


def compress(data: bytes, level: int, *, hash_log: int = 0) -> bytes:
    """Return a zstd frame of the data; ``hash_log`` 0 means the default of the level."""
    return _contexts.compressor(level, hash_log).compress(data, zstd.ZstdCompressor.FLUSH_FRAME)


def decompress(data: bytes | memoryview, size: int) -> bytes:
    """Return the ``size`` bytes inside a zstd frame; raise ``ValueError`` if they do not match."""
    decompressor = zstd.ZstdDecompressor()
    # An output buffer of exactly the right size needs one pass and two thirds of the time.
    raw = _decompressed(decompressor, data, max(size, 1))
    if len(raw) != size:
        raise ValueError(f"{len(raw)} bytes where {size} were expected")
    # Trailing data would mean that the frame holds more than its index entry says.
    if not decompressor.eof:
        raise ValueError(f"it does not end after {size} bytes")
    return raw


def decompress_start(data: bytes | memoryview, size: int) -> bytes:
    """Return the first ``size`` bytes inside a zstd frame; raise ``ValueError`` if it has fewer."""
    raw = _decompressed(zstd.ZstdDecompressor(), data, max(size, 1))[:size]
    if len(raw) != size:
        raise ValueError(f"{len(raw)} bytes where at least {size} were expected")
    return raw


def _decompressed(
    decompressor: zstd.ZstdDecompressor, data: bytes | memoryview, most: int
) -> bytes:
    try:
        return decompressor.decompress(data, max_length=most)
    except zstd.ZstdError as error:
        raise ValueError(f"not a zstd frame: {error}") from error


def to_micros(moment: datetime) -> int:
    """Return the microseconds since 1970 UTC of an aware datetime."""
    # Integer arithmetic: ``timestamp()`` is a float and can lose microseconds.
    return (moment - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Return the UTC datetime of :func:`to_micros`."""
    return _EPOCH + timedelta(microseconds=micros)


def moment(value: datetime) -> msgspec.msgpack.Ext:
    """Return a datetime in its encoded form: its ISO 8601 text."""
    return msgspec.msgpack.Ext(EXT_DATETIME, value.isoformat().encode())


def big_int(value: int) -> msgspec.msgpack.Ext:
    """Return an integer beyond 64 bits in its encoded form."""
    return msgspec.msgpack.Ext(EXT_BIGINT, b"%d" % value)


def map_head(count: int) -> bytes:
    """Return the header of a dict with this many entries; they follow, sorted by key."""
    return bytes((0x80 | count,)) if count < 16 else _head(0xDE, count)


def _head(code: int, count: int) -> bytes:
    return bytes((code, *count.to_bytes(2, "big")))


TEXT_HEADS = [
    *(bytes((0xA0 | n,)) for n in range(32)),
    *(bytes((0xD9, n)) for n in range(32, 256)),
    *(_head(0xDA, n) for n in range(256, 512)),
]
"""Headers of strings, by length in bytes."""


def _encode_hook(value: Any) -> msgspec.msgpack.Ext:
    if isinstance(value, Ref):
        return msgspec.msgpack.Ext(EXT_REF, value.digest)
    if isinstance(value, ListBranch):
        return msgspec.msgpack.Ext(EXT_LIST, encode([value.height, value.count, value.slots]))
    if isinstance(value, MapBranch):
        return msgspec.msgpack.Ext(EXT_MAP, encode([value.depth, value.count, value.slots]))
    if isinstance(value, OrderedBranch):
        fields = [value.height, value.keys, value.counts, value.slots]
        return msgspec.msgpack.Ext(EXT_ORDERED, encode(fields))
    raise TypeError(f"{type(value).__name__} has no canonical encoding")


encode = msgspec.msgpack.Encoder(enc_hook=_encode_hook, order="sorted").encode
"""Return the canonical bytes of a frozen value."""


def _frozen_hook(code: int, data: memoryview) -> Any:
    if code == EXT_REF and len(data) == DIGEST_SIZE:
        return Ref(Digest(bytes(data)))
    if code == EXT_LIST:
        return ListBranch(*decode(data))
    if code == EXT_MAP:
        return MapBranch(*decode(data))
    if code == EXT_ORDERED:
        return OrderedBranch(*decode(data))
    if code in (EXT_DATETIME, EXT_BIGINT):
        return msgspec.msgpack.Ext(code, bytes(data))
    raise ValueError(f"unknown extension type {code}")


_decode_frozen = msgspec.msgpack.Decoder(ext_hook=_frozen_hook).decode


def decode(data: bytes | memoryview) -> Any:
    """Return the frozen value of canonical bytes; references stay references.

    Raises ``DamageError`` if the bytes are not a valid encoding.
    """
    return _decoded(_decode_frozen, data)


def plain_decoder(load: Callable[[Digest], bytes]) -> Callable[[bytes], Any]:
    """Return a decoder to plain Python values that follows references through ``load``."""

    def hook(code: int, data: memoryview) -> Any:
        if code == EXT_REF and len(data) == DIGEST_SIZE:
            return plain(load(Digest(bytes(data))))
        if code == EXT_DATETIME:
            return datetime.fromisoformat(str(data, "ascii"))
        if code == EXT_BIGINT:
            return int(str(data, "ascii"))
        if code == EXT_LIST:
            return list(chain.from_iterable(decoder.decode(data)[2]))
        if code == EXT_MAP:
            slots = decoder.decode(data)[2]
            # The slots are in hash order; a large dict is returned in the order of a small one.
            return dict(sorted(pair for slot in slots if slot for pair in slot.items()))
        if code == EXT_ORDERED:
            slots = decoder.decode(data)[3]
            return {key: item for slot in slots if slot for key, item in slot.items()}
        raise ValueError(f"unknown extension type {code}")

    decoder = msgspec.msgpack.Decoder(ext_hook=hook)

    def plain(data: bytes) -> Any:
        return _decoded(decoder.decode, data)

    return plain


def _decoded(decoder: Callable[[bytes | memoryview], Any], data: bytes | memoryview) -> Any:
    try:
        return decoder(data)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise DamageError(f"Stored bytes are not an encoded value: {error}.") from error
