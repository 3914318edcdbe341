"""Who is reopened: a long past on disk, written once and read by fresh processes.

``write`` runs in the benchmark, ``probe`` in a child process that has seen nothing of it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.history import Change, Document, apply, said
from benchmarks.timing import peak_memory, timed


@dataclass(frozen=True, slots=True)
class Probe:
    """What one fresh process found: seconds and bytes; by point where there are many."""

    imported: float
    latest: float
    messages: int
    peak: int
    points: dict[str, float] = field(default_factory=dict)
    forks: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: bytes) -> Probe:
        """What a child process printed."""
        return cls(**json.loads(text))


class Archive(ABC):
    """A store that can hold a long past."""

    name: ClassVar[str]
    modules: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def write(cls, directory: Path, history: Sequence[Change]) -> None:
        """Make the whole past durable."""

    @classmethod
    @abstractmethod
    def probe(cls, directory: Path, points: Sequence[str]) -> Probe:
        """Open it, read the latest state, then the state at some points."""


class MulliganArchive(Archive):
    """A session of ours, written in batches and with no checkpoint to help."""

    name = "mulligan"
    modules = ("mulligan",)

    BATCH = 500

    @classmethod
    def write(cls, directory: Path, history: Sequence[Change]) -> None:
        import mulligan

        store = mulligan.open(directory / "store")
        session = store.session("bench")
        pending = iter(history)
        while batch := list(islice(pending, cls.BATCH)):
            with session.batch():
                for change in batch:
                    getattr(session.state, change.verb)(change.path, change.value)
        store.close()

    @classmethod
    def probe(cls, directory: Path, points: Sequence[str]) -> Probe:
        # What ``mulligan.open`` imports when it is first called, so that it is counted as import.
        imported, _ = timed(import_module, "mulligan.opener")
        mulligan = import_module("mulligan")

        def latest() -> tuple[Any, Any, Document]:
            store = mulligan.open(directory / "store")
            session = store.session("bench")
            return store, session, session.state.get()

        seconds, (store, session, document) = timed(latest)
        peak, messages = peak_memory(), said(document)

        def state(point: str) -> Any:
            return session.state.at(point).get()

        state_at = {p: timed(state, f"#{p}")[0] for p in points}
        forks = {p: timed(session.fork, f"#{p}", name=_fork_name(p))[0] for p in points}
        store.close()
        return Probe(imported, seconds, messages, peak, state_at, forks)


class SqliteJournal(Archive):
    """A hand-written journal: one row per event, folded from the first one."""

    name = "SQLite rows, folded"

    POINTS = 6
    """Enough to see the slope; each takes about as long as the whole."""

    @classmethod
    def write(cls, directory: Path, history: Sequence[Change]) -> None:
        import msgspec

        connection = sqlite3.connect(directory / "journal.sqlite")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, change BLOB)")
        rows = ((msgspec.msgpack.encode(change),) for change in history)
        connection.executemany("INSERT INTO events (change) VALUES (?)", rows)
        connection.commit()
        connection.close()

    @classmethod
    def probe(cls, directory: Path, points: Sequence[str]) -> Probe:
        path = directory / "journal.sqlite"
        imported, _ = timed(import_module, "msgspec")
        seconds, document = timed(cls._fold, path)
        peak = peak_memory()
        at = {p: timed(cls._fold, path, int(p))[0] for p in points[: cls.POINTS]}
        return Probe(imported, seconds, said(document), peak, at)

    @staticmethod
    def _fold(path: Path, until: int = 1 << 62) -> Document:
        import msgspec

        connection = sqlite3.connect(path)
        document: Document = {}
        decode = msgspec.msgpack.Decoder(Change).decode
        query = "SELECT change FROM events WHERE seq <= ? ORDER BY seq"
        for (change,) in connection.execute(query, (until,)):
            apply(document, decode(change))
        connection.close()
        return document


class LangGraphArchive(Archive):
    """The last checkpoint of the saver, and only that: all of them would fill a disk."""

    name = "LangGraph SQLite saver"
    modules = ("langchain_core", "langgraph", "langgraph.checkpoint.sqlite")

    CONFIG: ClassVar[Any] = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}

    @classmethod
    def write(cls, directory: Path, history: Sequence[Change]) -> None:
        from langgraph.checkpoint.base import empty_checkpoint
        from langgraph.checkpoint.sqlite import SqliteSaver

        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = cls._channels(history)
        with SqliteSaver.from_conn_string(str(directory / "checkpoints.sqlite")) as saver:
            saver.put(cls.CONFIG, checkpoint, {"source": "loop", "step": len(history)}, {})

    @classmethod
    def probe(cls, directory: Path, points: Sequence[str]) -> Probe:
        imported, module = timed(import_module, "langgraph.checkpoint.sqlite")

        def latest() -> Document:
            path = str(directory / "checkpoints.sqlite")
            with module.SqliteSaver.from_conn_string(path) as saver:
                values: Document = saver.get_tuple(cls.CONFIG).checkpoint["channel_values"]
                return values

        seconds, document = timed(latest)
        return Probe(imported, seconds, said(document), peak_memory())

    @staticmethod
    def _channels(history: Sequence[Change]) -> Document:
        from langchain_core.messages import HumanMessage

        document: Document = {}
        for change in history:
            apply(document, change)
        spoken = enumerate(document.get("conversation", ()))
        messages = [HumanMessage(content=m["content"], id=str(index)) for index, m in spoken]
        return document | {"conversation": messages}


KINDS: tuple[type[Archive], ...] = (MulliganArchive, SqliteJournal, LangGraphArchive)
ARCHIVES = {kind.__name__: kind for kind in KINDS}


def main(argv: Sequence[str]) -> None:
    """``ARCHIVE DIRECTORY POINT…``: probe an archive and print what was found."""
    name, directory, *points = argv
    print(json.dumps(asdict(ARCHIVES[name].probe(Path(directory), points))))


def _fork_name(point: str) -> str:
    """A name no other child process gives to its forks."""
    return f"fork-{os.getpid()}-{point}"


if __name__ == "__main__":
    main(sys.argv[1:])
