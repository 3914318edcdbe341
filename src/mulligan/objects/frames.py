"""The pack format as pure functions: bytes to structures and back, no I/O.

A pack is a 32-byte header and frames back to back. A frame is a 32-byte header, a directory
of the objects in it, and one body that holds them back to back, compressed or not.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import msgspec
from blake3 import blake3

from mulligan import codec
from mulligan.model import DIGEST_SIZE, ID_SIZE, Digest, ObjectKind
from mulligan.objects.protocol import MAX_OBJECT, Entry

PACK_MAGIC = b"MULLPACK"
PACK_VERSION = 1
FRAME_MAGIC = b"FRM1"
RAW = 0
ZSTD = 1

PACK_HEADER_SIZE = 32
FRAME_HEADER_SIZE = 32
ENTRY_SIZE = 37
CHECKSUM_SIZE = 12

MAX_COUNT = 1 << 20
"""The most objects in one frame, so that a damaged count cannot exhaust the memory."""

MAX_FRAME = FRAME_HEADER_SIZE + MAX_COUNT * ENTRY_SIZE + MAX_OBJECT
"""The longest frame in bytes; a location with a larger length is damaged."""

BULK_FRAME_BYTES = 128 << 10
"""A frame of this size holds many files, and the time to compress them counts."""

MIN_CHECKED_BODY = 16 << 10
"""A compressed body of at least this many bytes has a checksum.

It is compared in a tenth of the time that decompressing takes; for smaller ones it is not worth
its bytes.
"""

# The default of zstd: higher levels take much longer for little.
_LEVEL = 3
_PACK_HEADER = struct.Struct(f"<8sII{ID_SIZE}s")
_FRAME_START = struct.Struct("<4sB3sIII")
_ENTRY = struct.Struct(f"<B{DIGEST_SIZE}sI")
_ENTRY_LENGTH = struct.Struct(f"<{1 + DIGEST_SIZE}xI")
# A skippable frame of the zstd format, which decompressors ignore: magic, size, content.
_BODY_CHECKSUM_START = struct.pack("<II", 0x184D2A5D, 16)
_BODY_CHECKSUM_SIZE = len(_BODY_CHECKSUM_START) + 16
_PACK_NAME = r"([0-9a-f]{8})\.pack"


class DamagedFrame(ValueError):
    """Bytes that break the pack format; the caller adds file and offset."""


class FrameHeader(msgspec.Struct, frozen=True):
    """The fixed part of a frame; do not trust it before the directory's checksum is checked."""

    codec: int
    count: int
    raw_length: int
    stored_length: int
    checksum: bytes

    @property
    def body_start(self) -> int:
        """Return the offset of the body from the start of the frame."""
        return FRAME_HEADER_SIZE + self.count * ENTRY_SIZE

    @property
    def length(self) -> int:
        """Return the length of the whole frame."""
        return self.body_start + self.stored_length


class Frame:
    """A checked directory and the raw bytes of its objects, or of its first objects."""

    __slots__ = ("cost", "directory", "raw", "starts")

    def __init__(self, directory: bytes, starts: array[int], raw: bytes) -> None:
        self.directory = directory
        self.raw = raw
        self.starts = starts
        self.cost = len(raw) + len(directory) + self.starts.itemsize * len(self.starts)

    def reaches(self, slot: int) -> bool:
        """Whether the bytes of a slot are present, or there is no such slot."""
        return slot >= len(self.starts) - 1 or self.starts[slot + 1] <= len(self.raw)

    def object(self, slot: int, kind: int, digest: Digest) -> bytes:
        """Return the object in a slot after checking its kind, digest and bytes."""
        if not 0 <= slot < len(self.starts) - 1:
            raise DamagedFrame(f"the frame has no slot {slot}")
        at = slot * ENTRY_SIZE
        if self.directory[at + 1 : at + 1 + DIGEST_SIZE] != digest:
            raise DamagedFrame(f"slot {slot} holds another object")
        # The digest covers the kind as well; this gives the clearer message.
        if self.directory[at] != kind:
            raise DamagedFrame(f"it is of kind {self.directory[at]}, not {kind}")
        data = self.raw[self.starts[slot] : self.starts[slot + 1]]
        if codec.digest(kind, data) != digest:
            raise DamagedFrame("its bytes do not match its digest")
        return data


def pack_name(number: int) -> str:
    """Return the file name of a pack."""
    return f"{number:08x}.pack"


def pack_number(name: str) -> int | None:
    """Return the number in a pack's file name, or None for any other name."""
    match = re.fullmatch(_PACK_NAME, name)
    return int(match[1], 16) if match else None


def encode_pack_header(number: int, store_id: bytes) -> bytes:
    """Return the first 32 bytes of a pack."""
    if len(store_id) != ID_SIZE:
        raise ValueError(f"a store id has {ID_SIZE} bytes, not {len(store_id)}")
    return _PACK_HEADER.pack(PACK_MAGIC, PACK_VERSION, number, store_id)


def pack_owner(data: bytes) -> bytes | None:
    """Return the store id in a pack header; None if the header is incomplete."""
    if len(data) < PACK_HEADER_SIZE or not data.startswith(PACK_MAGIC):
        return None
    owner: bytes = _PACK_HEADER.unpack_from(data)[3]
    return owner


def check_pack_header(data: bytes, number: int, store_id: bytes) -> None:
    """Raise ``DamagedFrame`` unless the bytes are the header of this pack of this store."""
    if len(data) < PACK_HEADER_SIZE:
        raise DamagedFrame("the pack header is cut short")
    magic, version, found, owner = _PACK_HEADER.unpack_from(data)
    if magic != PACK_MAGIC:
        raise DamagedFrame("the file does not begin like a pack")
    if version != PACK_VERSION:
        raise DamagedFrame(f"the pack has the unknown version {version}")
    if found != number:
        raise DamagedFrame(f"the header belongs to pack {found}")
    if owner != store_id:
        raise DamagedFrame("the pack belongs to another store")


def encode_frame(objects: Sequence[tuple[int, Digest, bytes]]) -> bytes:
    """Return a frame with the objects in this order, compressed if that saves enough."""
    raw = b"".join(data for _, _, data in objects)
    if not 1 <= len(objects) <= MAX_COUNT or len(raw) > MAX_OBJECT:
        raise ValueError(f"{len(objects)} objects of {len(raw)} bytes do not fit a frame")
    directory = b"".join(_ENTRY.pack(kind, name, len(data)) for kind, name, data in objects)
    method, body = _compressed(raw, of_files=objects[0][0] == ObjectKind.CHUNK)
    start = _FRAME_START.pack(FRAME_MAGIC, method, b"\0\0\0", len(objects), len(raw), len(body))
    return b"".join((start, _checksum(start, directory), directory, body))


def _compressed(raw: bytes, *, of_files: bool) -> tuple[int, bytes]:
    is_bulk = of_files and len(raw) >= BULK_FRAME_BYTES
    packed = codec.compress_bulk(raw) if is_bulk else codec.compress(raw, _LEVEL)
    if len(packed) >= MIN_CHECKED_BODY:
        packed += _body_checksum(packed)
    # Saving a few percent is not worth a decompression at every read.
    if len(packed) < len(raw) - len(raw) // 32:
        return ZSTD, packed
    return RAW, raw


def _checksum(start: bytes, directory: bytes) -> bytes:
    return blake3(start + directory).digest()[:CHECKSUM_SIZE]


def _body_checksum(packed: bytes | memoryview) -> bytes:
    """Return what follows a compressed body: a frame that decompressors skip."""
    return _BODY_CHECKSUM_START + blake3(packed).digest(length=16)


def is_body_as_written(header: FrameHeader, body: bytes | memoryview) -> bool:
    """Whether a compressed body matches its checksum; False if it has none."""
    if header.codec != ZSTD or len(body) < MIN_CHECKED_BODY:
        return False
    return body[-_BODY_CHECKSUM_SIZE:] == _body_checksum(body[:-_BODY_CHECKSUM_SIZE])


def decode_header(data: bytes | memoryview) -> FrameHeader:
    """Return the header at the start of the bytes; only its limits are checked."""
    if len(data) < FRAME_HEADER_SIZE:
        raise DamagedFrame("the frame header is cut short")
    magic, method, zeros, count, raw_length, stored_length = _FRAME_START.unpack_from(data)
    if magic != FRAME_MAGIC:
        raise DamagedFrame("there is no frame")
    if method not in (RAW, ZSTD) or zeros != b"\0\0\0":
        raise DamagedFrame(f"the frame has the unknown codec {method} or unknown flags")
    # A body that does not get smaller is stored raw, so it is never longer than its content.
    if not 1 <= count <= MAX_COUNT or not stored_length <= raw_length <= MAX_OBJECT:
        raise DamagedFrame("the frame header is out of its limits")
    checksum = bytes(data[_FRAME_START.size : FRAME_HEADER_SIZE])
    return FrameHeader(method, count, raw_length, stored_length, checksum)


def decode_directory(data: bytes | memoryview) -> tuple[FrameHeader, bytes]:
    """Return the header and directory at the start of the bytes after checking both."""
    header = decode_header(data)
    directory = bytes(data[FRAME_HEADER_SIZE : header.body_start])
    if len(directory) != header.count * ENTRY_SIZE:
        raise DamagedFrame("the frame directory is cut short")
    if _checksum(bytes(data[: _FRAME_START.size]), directory) != header.checksum:
        raise DamagedFrame("the frame header or directory does not match its checksum")
    return header, directory


def entries(directory: bytes) -> Iterator[Entry]:
    """Return the objects of a directory in slot order."""
    return map(Entry._make, _ENTRY.iter_unpack(directory))


def digests(directory: bytes) -> tuple[Digest, ...]:
    """Return the digests of a directory's objects in slot order."""
    return tuple([digest for _, digest, _ in _ENTRY.iter_unpack(directory)])


def decode_frame(data: bytes | memoryview, last: int | None = None) -> Frame:
    """Decode bytes that are exactly one frame; its objects are not verified.

    With ``last``, only the objects up to that slot are decoded, which takes less time.
    """
    header, directory = decode_directory(data)
    if len(data) != header.length:
        raise DamagedFrame(f"the frame has {len(data)} bytes where it needs {header.length}")
    lengths = (length for (length,) in _ENTRY_LENGTH.iter_unpack(directory))
    starts = array("Q", accumulate(lengths, initial=0))
    body = data[header.body_start :]
    if last is None or last >= header.count - 1 or header.codec != ZSTD:
        raw = decode_body(header, body)
    else:
        raw = _decompressed(codec.decompress_start, body, starts[last + 1])
    if starts[-1] != header.raw_length:
        raise DamagedFrame("the directory does not add up to the body")
    return Frame(directory, starts, raw)


def decode_body(header: FrameHeader, body: bytes | memoryview) -> bytes:
    """Return the raw bytes of a frame's body."""
    if header.codec == ZSTD:
        return _decompressed(codec.decompress, body, header.raw_length)
    if len(body) != header.raw_length:
        raise DamagedFrame("the frame body has the wrong length")
    return bytes(body)


def _decompressed(
    decompress: Callable[[bytes | memoryview, int], bytes], body: bytes | memoryview, size: int
) -> bytes:
    try:
        return decompress(body, size)
    except ValueError as error:
        raise DamagedFrame(f"the frame body does not decompress ({error})") from error
