"""What may be lost with a damaged journal, and no trace of it is left.

An event that is lost inside of a session is known by its place. One after the newest that was found
is not: only the head of the session says where it ended, and only its record that it existed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mulligan.journal.lmdb.clean_close import DATA
from mulligan.journal.lmdb.replace import damage_of, is_older_copy
from mulligan.journal.lmdb.salvage import is_whole
from mulligan.journal.protocol import ALL_TABLES
from mulligan.journal.rebuild import Rebuilt
from mulligan.journal.records import CHECKSUM_SIZE, NUMBER, decode, decode_head
from mulligan.model import SessionRecord
from mulligan.timeline.times import shown


def may_be_lost(journal: Path, rebuilt: Rebuilt) -> Iterator[str]:
    """Yield in words what the damaged journal of a directory may have had besides."""
    damage, is_older = damage_of(journal).keys(), is_older_copy(journal)
    is_lost = bool(damage & {DATA, ALL_TABLES})
    if is_lost and not is_older and is_whole(journal / DATA):
        return  # the way to the records is damaged, and every one of them was found without it
    ends = set(rebuilt.without_head) if damage & {"heads", "events"} else set()
    if is_lost or is_older:
        ends = {NUMBER.unpack(key)[0] for key in rebuilt.tables["sessions"]}
    yield from (_end(rebuilt, number) for number in sorted(ends))
    if is_lost or is_older or damage >= {"sessions", "events"}:
        yield "sessions whose events no checkpoint has copied"


def _end(rebuilt: Rebuilt, number: int) -> str:
    key = NUMBER.pack(number)
    record = decode(rebuilt.tables["sessions"][key][:-CHECKSUM_SIZE], SessionRecord, "sessions")
    head = decode_head(rebuilt.tables["heads"][key][:-CHECKSUM_SIZE])
    return f"events after #{head.seq} of session {record.name!r}, written after {shown(head.time)}"
