"""``MulliganSaver``: the checkpoints of LangGraph's graphs in a store of Mulligan."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import Any, Self

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_metadata,
)

import mulligan
from mulligan.errors import UnknownSession
from mulligan.integrations.langgraph.files import check_durability
from mulligan.integrations.langgraph.history import delta_history
from mulligan.integrations.langgraph.layout import PREFIX, session_of, thread_key, thread_of
from mulligan.integrations.langgraph.listing import Listing
from mulligan.integrations.langgraph.removal import keep_latest, remove_runs
from mulligan.integrations.langgraph.thread import Loaded, Saved, Thread
from mulligan.integrations.langgraph.values import ValueCodec
from mulligan.store import Store, engine_of

Config = dict[str, Any]
"""LangGraph's ``RunnableConfig``."""

_Names = list[str]

Version = int | str
"""The version of a channel: a number, or, in threads of other savers, a string that begins with it.
"""

MAX_THREADS = 256
"""How many threads of graphs a saver keeps open."""

PAGE = 64
"""How many checkpoints an asynchronous listing fetches at once."""


class MulliganSaver(BaseCheckpointSaver[Version]):
    """Saves the checkpoints of graphs in a store: ``builder.compile(checkpointer=saver)``.

    ``store`` is an open store, or a directory that is opened as one; such a store is closed by
    :meth:`close`, or at the end of a ``with`` block. A thread of a graph is a session of the
    store, so ``mulligan log``, ``fork``, ``verify`` and the others work with it. With
    ``workspace``, every checkpoint holds the files of that directory, too, and a graph that is
    sent back to an earlier checkpoint gets the files of that checkpoint.

    Every call is durable when it returns. The methods of ``BaseCheckpointSaver`` are there for
    synchronous and asynchronous use; a saver may be shared by threads and event loops.
    """

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
        *,
        workspace: str | os.PathLike[str] | None = None,
        serde: Any = None,
    ) -> None:
        super().__init__(serde=serde)
        self._codec = ValueCodec(self.serde)
        self._owns_store = not isinstance(store, Store)
        self.store = store if isinstance(store, Store) else mulligan.open(store)
        self._workspace = workspace
        self._threads: OrderedDict[str, Thread] = OrderedDict()
        # For the table of threads. Each thread has a lock of its own, so graphs do not wait for
        # each other's transactions.
        self._lock = threading.Lock()
        _SAVERS.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Close the threads, and the store if it was opened here. Idempotent."""
        with self._lock:
            threads = list(self._threads.values())
            self._threads.clear()
        for thread in threads:
            thread.session.close()
        if self._owns_store:
            self.store.close()

    def __copy__(self) -> Self:
        """Return another saver with the same threads; LangGraph gives it another serializer."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        _SAVERS.add(made)
        return made

    @property
    def codec(self) -> ValueCodec:
        """How values are stored, by the saver's serializer."""
        # LangGraph copies the saver and gives the copy another serializer.
        if self._codec.serde is not self.serde:
            self._codec = ValueCodec(self.serde)
        return self._codec

    def get_tuple(self, config: Config) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the latest one of its thread."""
        name, namespace, id = _address(config)
        if self._workspace is not None and not namespace:
            check_durability(config["configurable"])
        thread = self._thread(name)
        if thread is None:
            return None
        thread.start(config["configurable"])
        loaded = thread.load(namespace, id, self.codec)
        return None if loaded is None else self._tuple(name, loaded)

    def list(
        self,
        config: Config | None,
        *,
        filter: dict[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield the checkpoints of a thread, or of all of them, the newest first.

        The tuples of one listing share the objects of their lists.
        """
        bound = None if before is None else _address(before)[2]
        found = self._listed(config, filter or {}, bound)
        return iter(islice(found, limit))

    def put(
        self, config: Config, checkpoint: Any, metadata: Any, new_versions: Mapping[str, Any]
    ) -> Config:
        """Save a checkpoint after the one that the config names; return the new one's config."""
        name, namespace, parent = _address(config)
        whole, codec = get_checkpoint_metadata(config, metadata), self.codec
        # At once, not when the store is ready: by default the graph goes on meanwhile, and may
        # change a value in place, as `add_messages` gives ids to the messages of the input.
        encoded = codec.encode_whole(checkpoint["channel_values"], new_versions)
        saved = Saved(namespace, parent, checkpoint, dict(whole), set(new_versions), encoded)
        self._write(name, lambda thread: thread.save(saved, codec))
        return _config(name, namespace, saved.id)

    def put_writes(
        self,
        config: Config,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Save what a task wrote before the step of its checkpoint is over."""
        name, namespace, id = _address(config)
        codec = self.codec
        stored = [
            [WRITES_IDX_MAP.get(channel, index), channel, codec.encode_write(value)]
            for index, (channel, value) in enumerate(writes)
        ]
        self._write(
            name, lambda thread: thread.save_writes(namespace, str(id), task_id, task_path, stored)
        )

    def get_delta_channel_history(
        self, *, config: Config, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what delta channels were built from: a stored value, and the writes since."""
        name, namespace, id = _address(config)
        thread = self._thread(name)
        if thread is None:
            return {channel: {"writes": []} for channel in channels}
        return delta_history(thread, namespace, id, channels, self.codec)

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread: all of its checkpoints and writes."""
        name = str(thread_id)
        with self._lock:
            thread = self._threads.pop(name, None)
        if thread is not None:
            thread.session.close()
        # Another process may delete it at the same time.
        with suppress(UnknownSession):
            self.store.delete(session_of(name))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, with all of its checkpoints and writes, to a new one."""
        source, target = str(source_thread_id), str(target_thread_id)
        if self.store.find(thread_key(source)) is not None:
            self.store.copy(session_of(source), session_of(target), key=thread_key(target))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints and writes of runs, in all threads.

        Those that a delta channel of a remaining checkpoint is built from stay.
        """
        _refuse_text(run_ids)
        if run_ids:
            for name in self._names():
                thread = self._thread(name)
                if thread is not None:
                    remove_runs(self.store, thread, {str(run) for run in run_ids}, self.codec)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all checkpoints of threads, or all but the latest ones (``keep_latest``).

        The latest one of each namespace stays, and those that a delta channel of it is built from;
        of subgraphs, those that keep their state between calls or are in the middle of one.
        """
        _refuse_text(thread_ids)
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"A strategy is 'keep_latest' or 'delete', not {strategy!r}.")
        for name in map(str, thread_ids):
            if strategy == "delete":
                self.delete_thread(name)
            elif (thread := self._thread(name)) is not None:
                keep_latest(self.store, thread, self.codec)

    def get_next_version(self, current: Version | None, channel: None) -> Version:
        """Return the version of a channel after the current one.

        A thread that another saver began, and that was copied, keeps the kind of its versions:
        LangGraph compares them with each other.
        """
        if isinstance(current, str):
            number = int(current.partition(".")[0]) + 1
            return f"{number:032}.{random.random():016}"  # noqa: S311
        return 1 if current is None else int(current) + 1

    async def aget_tuple(self, config: Config) -> CheckpointTuple | None:
        """Do what :meth:`get_tuple` does without blocking the event loop."""
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: Config | None,
        *,
        filter: dict[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Do what :meth:`list` does without blocking the event loop."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while page := await asyncio.to_thread(lambda: [*islice(found, PAGE)]):
            for one in page:
                yield one

    async def aput(
        self, config: Config, checkpoint: Any, metadata: Any, new_versions: Mapping[str, Any]
    ) -> Config:
        """Do what :meth:`put` does without blocking the event loop."""
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: Config,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Do what :meth:`put_writes` does without blocking the event loop."""
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def aget_delta_channel_history(
        self, *, config: Config, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Do what :meth:`get_delta_channel_history` does without blocking the event loop."""
        return await asyncio.to_thread(
            lambda: self.get_delta_channel_history(config=config, channels=channels)
        )

    async def adelete_thread(self, thread_id: str) -> None:
        """Do what :meth:`delete_thread` does without blocking the event loop."""
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Do what :meth:`copy_thread` does without blocking the event loop."""
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Do what :meth:`delete_for_runs` does without blocking the event loop."""
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Do what :meth:`prune` does without blocking the event loop."""
        await asyncio.to_thread(lambda: self.prune(thread_ids, strategy=strategy))

    def _listed(
        self, config: Config | None, filter: dict[str, Any], before: str | None
    ) -> Iterator[CheckpointTuple]:
        names, namespace, id = self._names() if config is None else [], None, None
        if config is not None:
            name, _, id = _address(config)
            names, namespace = [name], config["configurable"].get("checkpoint_ns")
        for name in names:
            thread = self._thread(name)
            if thread is not None:
                listing = Listing(
                    thread, self.codec, namespace=namespace, id=id, before=before, filter=filter
                )
                yield from (self._tuple(name, loaded) for loaded in listing)

    def _tuple(self, name: str, loaded: Loaded) -> CheckpointTuple:
        record, codec = loaded.record, self.codec
        rest = codec.decode(record.checkpoint)
        parent = None if record.parent is None else _config(name, record.namespace, record.parent)
        return CheckpointTuple(
            config=_config(name, record.namespace, record.id),
            checkpoint={"id": record.id, **rest, "channel_values": loaded.values},
            metadata=codec.decode(record.metadata),
            parent_config=parent,
            pending_writes=loaded.writes.decoded(codec),
        )

    def _names(self) -> _Names:
        """Return the names of all threads in the store."""
        found = (thread_of(session.internal.key) for session in self.store.sessions(PREFIX))
        return [name for name in found if name is not None]

    def _write(self, name: str, write: Callable[[Thread], None]) -> None:
        """Write to a thread; it is made if there is none."""
        with self._lock:
            known = self._threads.get(name)
            if known is not None:
                self._threads.move_to_end(name)
        if known is not None:
            # Not looked up before: the transaction of the write refuses a thread that another
            # process has deleted. Then nothing was written, and the one in its place is looked up.
            with suppress(UnknownSession):
                write(known)
                return
        write(self._thread(name) or self._opened(name))

    def _thread(self, name: str) -> Thread | None:
        """Return a thread if the store has it."""
        with self._lock:
            # Under the lock: another thread of this process may be making it.
            with engine_of(self.store).read() as view:
                record = view.keyed_session(thread_key(name))
            known = self._threads.get(name)
            # Another process may have deleted it, and may have made another one since.
            if known is not None and (record is None or known.number != record.number):
                del self._threads[name]
                known.session.close()
        return None if record is None else self._opened(name)

    def _opened(self, name: str) -> Thread:
        """Return a thread; its session is made if there is none."""
        with self._lock:
            if name not in self._threads:
                session = self.store.session(
                    session_of(name), workspace=self._workspace, key=thread_key(name)
                )
                self._threads[name] = Thread(session, has_files=self._workspace is not None)
                if len(self._threads) > MAX_THREADS:
                    self._close_oldest(name)
            self._threads.move_to_end(name)
            return self._threads[name]

    def _close_oldest(self, used: str) -> None:
        """Close the thread that was not used for longest; one that is needed stays."""
        for name, thread in self._threads.items():
            if name != used and not thread.is_needed:
                del self._threads[name]
                thread.session.close()
                return


def _address(config: Config) -> tuple[str, str, str | None]:
    """Return the thread, the namespace and the checkpoint's id of a config."""
    found = config["configurable"]
    id = found.get("checkpoint_id")
    return (
        str(found.get("thread_id", "")),
        found.get("checkpoint_ns") or "",
        None if not id else str(id),
    )


def _refuse_text(ids: Sequence[str]) -> None:
    """Raise ``TypeError`` for one id in the place of several: its letters would be taken as ids."""
    if isinstance(ids, str):
        raise TypeError(f"A list of ids is needed, not the text {ids!r}.")


def _config(thread: str, namespace: str, id: str) -> Config:
    return {
        "configurable": {
            "thread_id": thread,
            "checkpoint_ns": namespace,
            "checkpoint_id": id,
        }
    }


_SAVERS: weakref.WeakSet[MulliganSaver] = weakref.WeakSet()


def _after_fork() -> None:
    # A thread of the parent may have held a lock, or may have been about to write: all threads of
    # graphs are opened again when they are needed. Copies share theirs.
    renewed: dict[int, tuple[threading.Lock, OrderedDict[str, Thread]]] = {}
    for saver in list(_SAVERS):
        fresh = renewed.setdefault(id(saver._threads), (threading.Lock(), OrderedDict()))
        saver._lock, saver._threads = fresh


os.register_at_fork(after_in_child=_after_fork)
