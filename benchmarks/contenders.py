"""Who writes: Mulligan, the floor under any embedded store, and the peers.

Each contender makes every message durable before it takes the next, in the way its own
documentation tells people to. A contender imports its package when it is made, so one that is
not installed is left out and shown as such.
"""

from __future__ import annotations

import contextlib
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import lmdb
import msgspec

from benchmarks.messages import Message
from benchmarks.timing import timed, timed_each

MAP_SIZE = 1 << 34


class Contender(ABC):
    """Something that makes messages durable, one after the other."""

    name: ClassVar[str]
    modules: ClassVar[tuple[str, ...]] = ()
    """What has to be installed beyond what the harness itself needs."""

    @abstractmethod
    def __init__(self, directory: Path) -> None:
        """Open a new store in an empty directory."""

    @abstractmethod
    def batch(self, messages: Sequence[Message]) -> list[float]:
        """Make each message durable; the seconds each took."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the files, so that they can be measured at rest."""


class Floor(Contender):
    """One LMDB transaction per message, synced: the least a durable write costs here."""

    name = "the floor: LMDB commit"

    def __init__(self, directory: Path) -> None:
        self._env = lmdb.open(str(directory), map_size=MAP_SIZE)
        self._next = 0

    def batch(self, messages: Sequence[Message]) -> list[float]:
        return timed_each(self._put, _encoded(messages))

    def close(self) -> None:
        self._env.close()

    def _put(self, value: bytes) -> None:
        with self._env.begin(write=True) as transaction:
            transaction.put(self._next.to_bytes(8, "big"), value)
        self._next += 1


class SqliteWal(Contender):
    """One row and one commit per message, in WAL mode with ``synchronous=FULL``."""

    name = "SQLite WAL FULL"

    def __init__(self, directory: Path) -> None:
        self._connection = sqlite3.connect(directory / "messages.sqlite")
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("CREATE TABLE messages (seq INTEGER PRIMARY KEY, value BLOB)")

    def batch(self, messages: Sequence[Message]) -> list[float]:
        return timed_each(self._insert, _encoded(messages))

    def close(self) -> None:
        self._connection.close()

    def _insert(self, value: bytes) -> None:
        self._connection.execute("INSERT INTO messages (value) VALUES (?)", (value,))
        self._connection.commit()


class MulliganAppend(Contender):
    """One durable event per message."""

    name = "mulligan: append"
    modules = ("mulligan",)

    def __init__(self, directory: Path) -> None:
        import mulligan

        self._store = mulligan.open(directory / "store")
        self._session = self._store.session("bench")

    def batch(self, messages: Sequence[Message]) -> list[float]:
        return timed_each(self._append, messages)

    def close(self) -> None:
        self._store.close()

    def _append(self, message: Message) -> None:
        self._session.state.append("conversation", message)


class MulliganStep(MulliganAppend):
    """One durable event and one checkpoint per message."""

    name = "mulligan: step"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.checkpoint_seconds: list[float] = []

    def batch(self, messages: Sequence[Message]) -> list[float]:
        return [self._step(message) for message in messages]

    def _step(self, message: Message) -> float:
        append, _ = timed(self._append, message)
        checkpoint, _ = timed(self._session.checkpoint, kind="routine")
        self.checkpoint_seconds.append(checkpoint)
        return append + checkpoint


class MulliganBatch(MulliganAppend):
    """The same step as one transaction: a batch that takes its checkpoint."""

    name = "mulligan: step in a batch"

    def _append(self, message: Message) -> None:
        with self._session.batch() as batch:
            super()._append(message)
            batch.checkpoint("routine")


class MulliganCheckpoint(MulliganStep):
    """The checkpoint of each step alone, without the event before it."""

    name = "mulligan: checkpoint"

    def batch(self, messages: Sequence[Message]) -> list[float]:
        before = len(self.checkpoint_seconds)
        super().batch(messages)
        return self.checkpoint_seconds[before:]


class LangGraphSaver(Contender):
    """One checkpoint of a ``messages`` channel that grows by one message a step.

    Only ``put`` is called; a running graph also stores the writes of each node.
    """

    name = "LangGraph SQLite saver"
    modules = ("langchain_core", "langgraph", "langgraph.checkpoint.sqlite")

    def __init__(self, directory: Path) -> None:
        from langchain_core.messages import AIMessage, HumanMessage
        from langgraph.checkpoint.sqlite import SqliteSaver

        path = directory / "checkpoints.sqlite"
        self._connection = sqlite3.connect(path, check_same_thread=False)
        self._saver = SqliteSaver(self._connection)
        self._saver.setup()
        self._config: Any = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}
        self._kinds = {"user": HumanMessage, "assistant": AIMessage, "tool": HumanMessage}
        self._messages: list[Any] = []

    def batch(self, messages: Sequence[Message]) -> list[float]:
        return timed_each(self._put, messages)

    def close(self) -> None:
        self._connection.close()

    def _put(self, message: Message) -> None:
        from langgraph.checkpoint.base import empty_checkpoint

        step = len(self._messages)
        kind = self._kinds[message["role"]]
        self._messages.append(kind(content=message["content"], id=f"message-{step}"))
        version = f"{step + 1:032}.0"
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": self._messages}
        checkpoint["channel_versions"] = {"messages": version}
        checkpoint["updated_channels"] = ["messages"]
        metadata: Any = {"source": "loop", "step": step, "parents": {}}
        self._config = self._saver.put(self._config, checkpoint, metadata, {"messages": version})


class MulliganRecordedStep(MulliganAppend):
    """One durable step per message, which it returns."""

    name = "mulligan: recorded step"

    def _append(self, message: Message) -> None:
        self._session.step("remember", lambda: message)


class MulliganEffect(MulliganAppend):
    """One effect per message, which is its result: the intent, and the outcome."""

    name = "mulligan: effect"
    _next = 0

    def _append(self, message: Message) -> None:
        self._next += 1
        with self._session.effect("remember", key=str(self._next)) as effect:
            effect.result = message


class DbosStep(Contender):
    """One step of a running DBOS workflow per message, on its SQLite system database."""

    name = "DBOS step"
    modules = ("dbos",)

    def __init__(self, directory: Path) -> None:
        from dbos import DBOS

        self._dbos = DBOS
        DBOS(
            config={
                "name": "bench",
                "system_database_url": f"sqlite:///{directory / 'dbos.sqlite'}",
                "log_level": "ERROR",
            }
        )
        self._turn: Sequence[Message] = ()
        self._workflow = self._register()
        DBOS.launch()

    def batch(self, messages: Sequence[Message]) -> list[float]:
        self._turn = messages
        return self._workflow()

    def close(self) -> None:
        self._dbos.destroy(destroy_registry=True)

    def _register(self) -> Callable[[], list[float]]:
        """Declare the workflow: its steps return a message, which DBOS records."""

        def remember(message: Message) -> Message:
            return message

        step = self._dbos.step()(remember)

        def converse() -> list[float]:
            return timed_each(step, self._turn)

        workflow: Callable[[], list[float]] = self._dbos.workflow()(converse)
        return workflow


@contextlib.contextmanager
def opened(
    kinds: Sequence[type[Contender]], directory: Path
) -> Iterator[tuple[list[Contender], list[str]]]:
    """Open those that are installed, each in a directory of its own; the names of the others."""
    with contextlib.ExitStack() as stack:
        present: list[Contender] = []
        missing: list[str] = []
        for kind in kinds:
            contender = _open(kind, place(directory, kind))
            if contender is None:
                missing.append(kind.name)
            else:
                stack.callback(contender.close)
                present.append(contender)
        yield present, missing


def place(directory: Path, kind: type[Contender]) -> Path:
    """The directory of a contender."""
    return directory / kind.__name__


def _open(kind: type[Contender], directory: Path) -> Contender | None:
    directory.mkdir(parents=True)
    try:
        return kind(directory)
    except ModuleNotFoundError as error:
        # Only the package itself may be missing; a module missing inside it is a fault to see.
        if error.name in kind.modules:
            return None
        raise


def _encoded(messages: Sequence[Message]) -> list[bytes]:
    return [msgspec.msgpack.encode(message) for message in messages]
