"""Sorting records of a journal that were read somewhere, without knowing their tables.

A small record's checksum covers the name of its table and its key, so it says where it belongs.
What no checksum fits may be an event, which the hash chain has to prove.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from mulligan import codec
from mulligan.journal.protocol import TABLES
from mulligan.journal.records import (
    CHECKSUM_SIZE,
    COLLECTION,
    DAMAGE,
    DELETED,
    ERASE,
    FORGOTTEN,
    LENGTH,
    NUMBER,
    PLACE,
    STORE,
    RawRecord,
    checksum,
    decode,
    decode_fold,
    decode_head,
    decode_lease,
    decode_tombstone,
    encode_fold,
    encode_head,
    encode_tombstone,
)
from mulligan.model import DIGEST_SIZE, ID_SIZE, Digest, Fold, Head, SessionRecord, Tombstone

DERIVED = frozenset(TABLES) - {"objects", "packs", "condemned", "fresh", "damaged"}
"""The tables that are rebuilt here; the index of objects comes from the packs."""


class FoundRecords:
    """The records that were found, by table; each has passed its checksum, but for events."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[bytes, bytes]] = {name: {} for name in DERIVED}
        self._is_current: set[tuple[str, bytes]] = set()
        self.events: dict[int, dict[int, list[bytes]]] = defaultdict(lambda: defaultdict(list))
        self.folds: dict[int, list[Fold]] = defaultdict(list)

    def add(self, record: RawRecord) -> None:
        for table in _tables_by_shape(record):
            content = record.value[:-CHECKSUM_SIZE]
            if record.value[-CHECKSUM_SIZE:] == checksum(table, record.key, content):
                self._add_small(table, record, content)
                return
        if len(record.key) == PLACE.size and len(record.value) > DIGEST_SIZE:
            number, seq = PLACE.unpack(record.key)
            at = self.events[number][seq]
            if record.value not in at:
                # Current ones first: of two that fit, the other was never committed.
                at.insert(0 if record.is_current else len(at), record.value)

    def _add_small(self, table: str, record: RawRecord, content: bytes) -> None:
        if table == "folds":
            number, last = PLACE.unpack(record.key)
            self.folds[number].append(decode_fold(last, content))
        known, where = self.tables[table].get(record.key), (table, record.key)
        if known is not None and not _is_better(table, content, known, record.is_current):
            return
        if known is None or record.is_current or where not in self._is_current:
            self.tables[table][record.key] = content
        if record.is_current:
            self._is_current.add(where)

    def is_current(self, table: str, key: bytes) -> bool:
        return (table, key) in self._is_current


def _is_better(table: str, content: bytes, known: bytes, is_current: bool) -> bool:
    """Whether a record replaces another version of itself."""
    if table == "heads":
        return decode_head(content).seq >= decode_head(known).seq
    if table == "leases":
        return decode_lease(content).epoch >= decode_lease(known).epoch
    if table == "purged":
        return decode_tombstone(content).purge >= decode_tombstone(known).purge
    if table == "sessions" and not is_current:
        # A deleted session must not come back from an older version of its record.
        return decode(content, SessionRecord, table).deleted is not None
    return is_current


_THEN = codec.from_micros(0)
_HEAD_SIZE = len(encode_head(Head(0, bytes(DIGEST_SIZE), _THEN)))
_TOMBSTONE_SIZE = len(encode_tombstone(Tombstone(0, None)))
_FOLD_SIZE = len(encode_fold(Fold(0, 0, _THEN, _THEN, bytes(32), Digest(bytes(32)))))


def _tables_by_shape(record: RawRecord) -> Iterator[str]:
    """Yield the tables that a record may belong to, judging by its lengths."""
    key, size = record.key, len(record.value) - CHECKSUM_SIZE
    if size < 0 or (len(key) == DIGEST_SIZE and size == 12):
        return  # an entry of the index of objects, or of one of its lists
    if size == 0:
        yield "labels"
    if key in (STORE, COLLECTION, FORGOTTEN, DAMAGE, DELETED, ERASE) or key[:5] == b"clock":
        yield "meta"
    if size == _TOMBSTONE_SIZE and len(key) in (DIGEST_SIZE, PLACE.size):
        yield "purged"
    if len(key) == NUMBER.size:
        yield "heads" if size == _HEAD_SIZE else "sessions"
        yield "purges"
    elif len(key) == PLACE.size:
        yield from {
            ID_SIZE: ("checkpoints", "pruned"),
            DIGEST_SIZE: ("keyframes",),
            LENGTH.size + DIGEST_SIZE: ("copies",),
            _FOLD_SIZE: ("folds",),
        }.get(size, ())
    if size == NUMBER.size:
        yield "names"
    if len(key) == ID_SIZE and size == PLACE.size:
        yield "ids"
    if len(key) == NUMBER.size + DIGEST_SIZE and size == LENGTH.size:
        yield "keys"
    if len(key) > NUMBER.size and size > 0:
        yield "leases"
