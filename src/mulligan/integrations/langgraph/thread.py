"""One thread of a graph in its session: how its checkpoints are saved and read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, count, takewhile
from typing import Any, NamedTuple

import msgspec

from mulligan.document.document import Document, gc_paused
from mulligan.errors import CheckpointNeeded, KeyTaken
from mulligan.integrations.langgraph.changes import StateChanges, deciding, length_at, value_at
from mulligan.integrations.langgraph.files import FORK_OF, ThreadFiles
from mulligan.integrations.langgraph.known import KnownCheckpoint, KnownCheckpoints, Update
from mulligan.integrations.langgraph.layout import (
    GRAPHS,
    KIND,
    MAX_RECORD,
    OPENED,
    RECORD,
    REMOVED,
    UNORDERED,
    WRITES,
    Record,
    checkpoint_key,
    decode_record,
    encode_record,
    graph_path,
)
from mulligan.integrations.langgraph.queue import QueuedCall, WritesQueue
from mulligan.integrations.langgraph.references import RecentWrites, resolved
from mulligan.integrations.langgraph.values import ValueCodec
from mulligan.integrations.langgraph.writes import PendingWrites, StoredWrites
from mulligan.model import Checkpoint
from mulligan.session import Session
from mulligan.session.write.checkpoint_request import checked_request
from mulligan.store import Store

MAX_GRAPHS = 64
"""How many namespaces the newest state has the lists of; others are stored whole again."""

IN_STATE = "in_state"
"""The data of a checkpoint whose record is in the state, with its namespace."""

RECORDS_PAGE = 128
"""How many records a listing reads at once."""


class Loaded(NamedTuple):
    """A checkpoint as it was read: its record, its values and its pending writes."""

    record: Record
    values: dict[str, Any]
    writes: PendingWrites


class Saved(NamedTuple):
    """A checkpoint to save: ids, and LangGraph's checkpoint and metadata.

    ``changed`` names the channels that changed; ``encoded`` has those that are stored whole.
    """

    namespace: str
    parent: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    changed: set[str]
    encoded: dict[str, Any]

    @property
    def id(self) -> str:
        """LangGraph's id of the checkpoint."""
        return str(self.checkpoint["id"])


class Thread:
    """A thread of a graph. Safe for use by several threads of the process at once."""

    def __init__(self, session: Session, *, has_files: bool = False) -> None:
        self.session = session
        # One lock for what is known and for the writes: both must be about the same state.
        self._lock = threading.RLock()
        self._last: dict[str, str] = {}
        self._early: dict[tuple[str, str], int] = {}
        self._gone: set[str] = set()
        self._known = KnownCheckpoints()
        self._recent = RecentWrites()
        self._queue = WritesQueue()
        self.writes = StoredWrites(session)
        self._files = ThreadFiles(session) if has_files else None

    @property
    def number(self) -> int:
        """The number of the thread's session, which no later one of the same name has."""
        return self.session.internal.number

    @property
    def is_needed(self) -> bool:
        """Whether it knows of writes whose checkpoint is still to come, or has calls to write."""
        return bool(self._early or self._queue.waiting())

    def start(self, configurable: dict[str, Any]) -> None:
        """Prepare the files for a run, if the config that loads a checkpoint is that of one."""
        if self._files is not None:
            with self._lock:
                self._files.at_start(configurable)

    def load(self, namespace: str, id: str | None, codec: ValueCodec) -> Loaded | None:
        """Return a checkpoint, or the latest one of a namespace; None if there is none."""
        with self._lock:
            found = self.record(namespace, id)
            if found is None:
                return None
            record, seq = found
            with gc_paused():
                known = self._known.at(namespace, record.id, seq)
                if known is None:
                    known = KnownCheckpoint.read(record, seq, self.stored(record, seq), codec)
                else:
                    known = known.again(codec)
            self._known.add(namespace, record.id, known)
            return Loaded(record, known.values(codec), self.writes.of(record))

    def record(self, namespace: str, id: str | None) -> tuple[Record, int] | None:
        """Return the record of a checkpoint and its seq, or of the latest one of a namespace."""
        document = self.session.internal.document()
        if id is None:
            place = graph_path(namespace)
            id = value_at(document, (*place, "latest")) or value_at(document, (*place, "id"))
        if id is None:
            return None
        taken = self.session.checkpoints.find(self._key(namespace, id, document))
        return None if taken is None else (self._read(taken), taken.seq)

    def records(self) -> Iterator[tuple[Record, int]]:
        """Yield the records of all checkpoints with their seqs, by their ids, the newest first."""
        if self.session.state.get(UNORDERED):
            yield from sorted(self._newest_first(), key=lambda found: found[0].id, reverse=True)
        else:
            yield from self._newest_first()

    def _newest_first(self) -> Iterator[tuple[Record, int]]:
        until: int | None = None
        while page := self.session.checkpoints(
            until=until, kind=KIND, limit=RECORDS_PAGE, reverse=True
        ):
            removed = self._removed()
            for taken in page:
                if taken.key not in removed:
                    yield self._read(taken), taken.seq
            until = page[-1].seq - 1

    def stored(self, record: Record, seq: int) -> dict[str, Any]:
        """Return what the state at a checkpoint has for its lists and large values."""
        if not record.lists and not record.large:
            return {}
        view = self.session.state.at(seq)
        found: dict[str, Any] = view.get(graph_path(record.namespace), {})
        for name, items in found["lists"].items():
            found["lists"][name] = resolved(
                items, lambda first, last: view.slice(WRITES, first, last + 1)
            )
        return found

    def save(self, saved: Saved, codec: ValueCodec) -> None:
        """Save a checkpoint; durable on return."""
        # Tried without waiting first: if a call is being written, the next one can be taken along
        # by the checkpoint that follows it, and saves a transaction.
        if not self._lock.acquire(blocking=False):
            self._queue.met()
            self._lock.acquire()
        try:
            self._save(saved, codec)
        finally:
            self._lock.release()

    def _save(self, saved: Saved, codec: ValueCodec) -> None:
        if self._files is not None:
            source = saved.metadata.get("source")
            self._files.at_save(saved.namespace, saved.parent, source)
        document = self.session.internal.document()
        known = self._known.take(saved.namespace, saved.parent)
        update = Update.of(saved.checkpoint, saved.changed, saved.encoded, known, codec)
        calls = self._waiting()
        # Its own writes come after those that are there, and after those that come with it.
        others = takewhile(lambda call: call.checkpoint != (saved.namespace, saved.id), calls)
        first_write = length_at(document, WRITES) + sum(1 for _ in others)
        record = self._new_record(saved, update, codec, first_write)
        key = self._key(saved.namespace, record.id, document)
        try:
            seq = self._commit(key, record, saved, update, calls, is_known=known is not None)
        except KeyTaken:
            # A checkpoint that is saved again takes the place of the one before.
            self.session.state.append(REMOVED, key)
            key = self._key(saved.namespace, record.id)
            seq = self._commit(key, record, saved, update, calls, is_known=False)
        if self._files is not None:
            self._files.saved(saved.namespace)
        self._last[saved.namespace] = record.id
        self._early.pop((saved.namespace, record.id), None)
        self._known.add(saved.namespace, record.id, update.known(seq))

    def save_writes(
        self, namespace: str, id: str, task: str, path: str, writes: list[list[Any]]
    ) -> None:
        """Save pending writes of a task; durable on return."""
        call = QueuedCall(namespace, id, task, path, writes)
        self._queue.add(call)
        try:
            if not self._queue.let_take(call):
                self._write_waiting(call)
        except BaseException:
            # Those of other threads stay: each of them tries by itself.
            self._queue.remove(call)
            raise

    def _write_waiting(self, call: QueuedCall) -> None:
        """Write all calls that wait, unless another thread has written this one meanwhile."""
        with self._lock:
            if not call.is_written:
                calls = self._waiting()
                self.session.internal.commit(deciding(lambda state: self._append(state, calls)))
                self._written(calls)

    def _waiting(self) -> list[QueuedCall]:
        """Return the calls that the next transaction writes."""
        calls = self._queue.waiting()
        for call in calls:
            call.is_early = not self._is_saved(*call.checkpoint)
        return calls

    def _append(self, state: StateChanges, calls: list[QueuedCall]) -> None:
        """Append the pending writes of calls to the state."""
        self._recent.begin()
        if not calls:
            return
        first = state.length(WRITES)
        state.extend_frozen(WRITES, [call.stored for call in calls])
        for position, call in enumerate(calls, first):
            # Of a run that does not count, these are overwritten, or compared before they are used.
            call.position = position
            self._recent.add(position, call.writes)

    def _written(self, calls: list[QueuedCall]) -> None:
        for call in calls:
            if call.is_early:
                # They may be saved before their checkpoint, which then looks for them from here.
                self._early.setdefault(call.checkpoint, call.position)
        self._queue.written(calls)

    def remove(self, store: Store, records: list[Record]) -> None:
        """Remove checkpoints with their pending writes, in one transaction.

        The next garbage collection erases what nothing else needs of them.
        """
        doomed = {(record.namespace, record.id) for record in records}
        latest: dict[str, str] = {}
        with self._lock:
            for record, _ in self._newest_first():
                if (record.namespace, record.id) not in doomed:
                    place = graph_path(record.namespace)[-1]
                    latest[place] = max(record.id, latest.get(place, ""))
            keys = {place: self._key(*place) for place in doomed}
            self.session.internal.commit(deciding(lambda state: _remove(state, keys, latest)))
            self._last.clear()
        self._erase(store, list(keys.values()))

    def _erase(self, store: Store, keys: list[str]) -> None:
        """Delete checkpoints of the session that were removed from the thread, if they can be.

        The newest one of a session, and those that a copy of the thread has, too, stay hidden.
        """
        from mulligan.upkeep import delete_checkpoints

        newest = self.session.checkpoints(newest=1)[0].seq
        found = [taken for key in keys if (taken := self.session.checkpoints.find(key)) is not None]
        seqs = [t.seq for t in found if t.session == self.session.name and t.seq != newest]
        try:
            delete_checkpoints(store, self.session, seqs)
        except CheckpointNeeded:
            for seq in seqs:
                # Something else needs it: a copy of the thread, or a restore that can be undone.
                with suppress(CheckpointNeeded):
                    delete_checkpoints(store, self.session, [seq])

    def _is_saved(self, namespace: str, id: str) -> bool:
        if self._last.get(namespace) == id:
            return True
        return self.session.checkpoints.find(self._key(namespace, id)) is not None

    def _key(self, namespace: str, id: str, document: Document | None = None) -> str:
        """Return the key of a checkpoint: the first one that was not removed."""
        removed, base = self._removed(document), checkpoint_key(namespace, id)
        if base not in removed:
            return base
        keys = chain([base], (f"{base}~{number}" for number in count(2)))
        return next(key for key in keys if key not in removed)

    def _removed(self, document: Document | None = None) -> set[str]:
        """Return the keys of checkpoints that were removed from the thread."""
        count = length_at(document or self.session.internal.document(), REMOVED)
        if count != len(self._gone):
            self._gone = set(self.session.state.get(REMOVED, []))
        return self._gone

    def _read(self, taken: Checkpoint) -> Record:
        """Return the record that a checkpoint of the session has."""
        namespace = taken.data.get(IN_STATE)
        if namespace is None:
            encoded = taken.data[RECORD]
        else:
            encoded = self.session.state.at(taken.seq).get((*graph_path(namespace), RECORD))
        return self._without_removed_parent(decode_record(encoded))

    def _without_removed_parent(self, record: Record) -> Record:
        if record.parent is None or checkpoint_key(record.namespace, record.parent) not in (
            self._gone  # up to date: every look-up of a checkpoint compared it
        ):
            return record
        is_there = (
            self.session.checkpoints.find(self._key(record.namespace, record.parent)) is not None
        )
        return record if is_there else msgspec.structs.replace(record, parent=None)

    def _new_record(
        self, saved: Saved, update: Update, codec: ValueCodec, first_write: int
    ) -> Record:
        rest = {k: v for k, v in saved.checkpoint.items() if k not in ("id", "channel_values")}
        early = self._early.get((saved.namespace, saved.id))
        return Record(
            namespace=saved.namespace,
            id=saved.id,
            parent=saved.parent,
            first_write=first_write if early is None else early,
            checkpoint=codec.encode(rest),
            metadata=codec.encode(saved.metadata),
            small=update.small,
            large=list(update.large),
            lists=update.lengths(),
        )

    def _commit(
        self,
        key: str,
        record: Record,
        saved: Saved,
        update: Update,
        calls: list[QueuedCall],
        *,
        is_known: bool,
    ) -> int:
        """Write a checkpoint in one transaction: the change to the last one, or all of it.

        Returns its seq.
        """
        place, encoded = graph_path(record.namespace), encode_record(record)
        is_large = len(encoded) > MAX_RECORD

        def write(state: StateChanges) -> None:
            self._append(state, calls)
            # Decided here, where no other process can save a checkpoint meanwhile.
            last, latest = state.texts(place, "id", "latest")
            if is_known and last == saved.parent:
                state.set((*place, "id"), record.id)
                update.write_changes(state, place, self._recent)
            else:
                _make_room(state, record.namespace)
                state.set(place, {"id": record.id, **update.whole()})
            _write_latest(state, place, record.id, last, latest)
            if is_large:
                state.set((*place, RECORD), encoded)

        data: dict[str, Any] = {IN_STATE: record.namespace} if is_large else {RECORD: encoded}
        if self._files is not None and saved.metadata.get("source") == "fork":
            data[FORK_OF] = saved.parent
        request = checked_request(KIND, _note(saved), None, key, data)
        seq = self.session.internal.checkpoint_after(deciding(write), request)
        self._written(calls)
        return seq


def _write_latest(
    state: StateChanges, place: tuple[str, ...], id: str, last: str | None, latest: str | None
) -> None:
    """Note which checkpoint is the latest, if it is not the last one that was saved."""
    highest = latest or last
    if highest is not None and id < highest:
        state.set((*place, "latest"), highest)
        state.set(UNORDERED, True)
    elif latest is not None and state.get((*place, "latest")) is not None:
        state.delete((*place, "latest"))


def _make_room(state: StateChanges, namespace: str) -> None:
    """Remove the lists of the oldest namespace from the newest state if it has those of many.

    Every checkpoint keeps its own. Namespaces around this one are in use and stay.
    """
    opened: list[str] = state.get(OPENED, [])
    if not namespace or graph_path(namespace)[-1] in opened:
        return
    state.append(OPENED, graph_path(namespace)[-1])
    if len(opened) < MAX_GRAPHS:
        return
    position = next((i for i, other in enumerate(opened) if not namespace.startswith(other)), None)
    if position is not None:
        place = (*GRAPHS, opened[position])
        graph = {key: state.get((*place, key)) for key in ("latest", "id")}
        state.set(place, {"latest": graph["latest"] or graph["id"]})
        state.delete((*OPENED, position))


def _remove(state: StateChanges, keys: dict[tuple[str, str], str], latest: dict[str, str]) -> None:
    """Remove checkpoints from the state; ``latest`` are those that are the latest without them."""
    for position, call in enumerate(state.get(WRITES, [])):
        if call is not None and (call[0], call[1]) in keys:
            state.set((*WRITES, position), None)
    state.extend(REMOVED, sorted(keys.values()))
    state.set(OPENED, [])
    gone = {checkpoint_key(*place) for place in keys}
    for place, graph in state.get(GRAPHS, {}).items():
        # Without its lists, which refer to writes. A checkpoint that another process saved since
        # is not among the removed ones, and stays the latest.
        ids = {latest.get(place), graph.get("id"), graph.get("latest")} - {None}
        kept = [id for id in ids if checkpoint_key(place, id) not in gone]
        state.delete((*GRAPHS, place))
        if kept:
            state.set((*GRAPHS, place), {"latest": max(kept)})


def _note(saved: Saved) -> str:
    source, step = saved.metadata.get("source", "loop"), saved.metadata.get("step", "?")
    where = f" of {saved.namespace}" if saved.namespace else ""
    return f"step {step} ({source}){where}"
