"""Deleting sessions from a journal in ordered tables.

A session is deleted in one transaction, which takes its name away. Its events are removed later, by
upkeep: those that no fork continues, from the newest on. The caller may split that over any number
of transactions, because after each of them the rest is a shorter session.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from mulligan.journal.kv_transaction import KvTransaction
from mulligan.journal.protocol import STORE_SCOPE
from mulligan.journal.records import (
    DELETED,
    ERASE,
    LENGTH,
    MAX_SEQ,
    NUMBER,
    PLACE,
    clock_key,
    encode,
    foreign_key,
    label_key,
)
from mulligan.model import Deletions, Erasure, Head, SessionRecord


class KvDeletion(KvTransaction):
    """A write transaction of the journal that can also delete sessions."""

    def delete_session(self, number: int, time: datetime) -> None:
        """Take a session's name and key away, and mark it as deleted."""
        self._check_owned(None)
        record = self.session(number)
        if record.deleted is not None:
            return
        # No name of a session contains a tilde, so nothing else is found by the new one.
        made = msgspec.structs.replace(record, name=f"deleted~{number}", key=None, deleted=time)
        self._writer.delete("names", record.name.encode())
        if record.key is not None:
            self._writer.delete("keys", foreign_key(STORE_SCOPE, record.key))
        self._put("sessions", NUMBER.pack(number), encode(made))
        self._put("names", made.name.encode(), NUMBER.pack(number))
        # Not in the shared cache before the commit, as in `create`.
        self._created[number] = made
        self.note_deletion()

    def note_deletion(self) -> None:
        """Note that something was deleted, whose bytes are to be erased."""
        self._check_owned(None)
        self._put("meta", ERASE, encode(Deletions(self.deletions().count + 1, Erasure.ALL)))

    def note_erased(self, left: Deletions) -> None:
        """Note where bytes may still be left, unless something was deleted since."""
        self._check_owned(None)
        if self.deletions().count == left.count:
            self._put("meta", ERASE, encode(left))

    def cut_session(self, number: int, last: int) -> None:
        """Remove the events of a deleted session after a seq; with the first one, all of it."""
        self._check_owned(None)
        record = self.session(number)
        base = record.origin.seq if record.origin else 0
        self._check_cut(record, base, last)
        for key, identity in list(self._scan("checkpoints", number, last + 1, MAX_SEQ)):
            self._writer.delete("checkpoints", key)
            self._writer.delete("ids", identity)
        for table in ("events", "keyframes", "pruned", "folds", "copies"):
            for key, _ in list(self._raw_scan(table, number, last + 1, MAX_SEQ)):
                self._writer.delete(table, key)
        for label, seq in self.labels(number):
            if seq > last:
                self._writer.delete("labels", label_key(number, label) + LENGTH.pack(seq))
        for digest, seq in self.keys(number):
            if seq > last:
                self._writer.delete("keys", NUMBER.pack(number) + digest)
        self._cut_clock(number, last)
        if last > base:
            self._put_head(number, self._head_at(number, last))
        else:
            self._remove_session(record)

    def _check_cut(self, record: SessionRecord, base: int, last: int) -> None:
        number = record.number
        if record.deleted is None or not base <= last <= self.head(number).seq:
            raise ValueError(f"Session {record.name!r} cannot be cut after #{last}.")
        for fork in self.sessions():
            if fork.origin is None:
                continue
            is_parent = fork.origin.session == number and last == base
            if is_parent or (fork.origin.seq > last and self._owns(number, fork)):
                raise ValueError(f"Session {fork.name!r} continues from #{fork.origin.seq}.")
        if any(fold.first <= last <= fold.last for fold in self.folds(number)):
            raise ValueError(f"Event #{last} was folded away, and cannot be the newest one.")

    def _cut_clock(self, number: int, last: int) -> None:
        steps = self.own_steps_back(number)
        kept = [seq for seq in steps if seq <= last]
        if kept:
            self._put("meta", clock_key(number), b"".join(map(LENGTH.pack, kept)))
        elif steps:
            self._writer.delete("meta", clock_key(number))

    def _head_at(self, number: int, seq: int) -> Head:
        [event] = self.events(number, seq, seq)
        keyframe = self.keyframe(number, seq)
        newest = self.checkpoint_before(number, seq)
        return Head(seq, event.hash, event.time, keyframe[0] if keyframe else 0, newest)

    def _remove_session(self, record: SessionRecord) -> None:
        key = NUMBER.pack(record.number)
        leases = [k for k, _ in self._reader.scan("leases", key, NUMBER.pack(record.number + 1))]
        for lease in leases:
            self._writer.delete("leases", lease)
        self._writer.delete("copies", PLACE.pack(record.number, 0))
        self._writer.delete("names", record.name.encode())
        self._writer.delete("sessions", key)
        self._writer.delete("heads", key)
        self._heads.pop(record.number, None)
        self._moved.discard(record.number)
        self._created.pop(record.number, None)
        # Its number is not used again: handles on it may still be open.
        last = max(record.number, self.last_deleted_session())
        self._put("meta", DELETED, NUMBER.pack(last))
