"""How a thread of a graph lies in its session.

A thread is a session. Each checkpoint of the graph is a checkpoint of the session: its key is the
id that LangGraph gave it, its data the record of it. The component ``langgraph`` of the state has

- ``writes``: ``[namespace, id, task, path of the task, [[index, channel, value], …]]`` of every
  call that saved pending writes of a checkpoint; None once they were removed;
- ``graphs``: for each namespace the ``id`` of the checkpoint that was saved last, its ``lists``,
  item by item, and its large ``values``; the ``latest`` checkpoint if that is another one. Small
  values are in the record of each checkpoint;
- ``unordered`` once a checkpoint was saved after one with a higher id;
- ``opened``: the namespaces of subgraphs whose lists ``graphs`` has, the oldest first;
- ``removed``: the keys of checkpoints that were removed from the thread.

So the lists of a checkpoint are in the state at its point, where each shares all items with the
lists before it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mulligan.decoding import ready
from mulligan.errors import InvalidName
from mulligan.session.names import MAX_KEY, check_key, session_name

ROOT = "langgraph"
WRITES = (ROOT, "writes")
GRAPHS = (ROOT, "graphs")
UNORDERED = (ROOT, "unordered")
REMOVED = (ROOT, "removed")
OPENED = (ROOT, "opened")
KIND = "langgraph"
"""The kind of the checkpoints of graphs; retention keeps all of them."""

RECORD = "record"
"""The key of the record in the data of a checkpoint."""

SMALL_VALUE = 256
"""Up to this many bytes, a value is part of its checkpoint's record."""

MAX_RECORD = 48 << 10
"""The largest record that is the data of its checkpoint; a larger one is in the state."""

MAX_NAMESPACE = 400
"""The longest namespace that is used as it is."""

PREFIX = "langgraph-"

SHOWN = 40
"""How many characters of an invalid id an error shows."""


class Record(msgspec.Struct, frozen=True, array_like=True):
    """What is stored of a checkpoint beside its lists and large values.

    ``first_write`` is the position among all pending writes from which on its own can be.
    ``checkpoint`` is LangGraph's checkpoint without its values, ``metadata`` its metadata, both
    encoded, as are the ``small`` values. ``lists`` has the length of each list, and the length of
    the parent's if the list begins with it.
    """

    namespace: str
    id: str
    parent: str | None
    first_write: int
    checkpoint: Any
    metadata: Any
    small: dict[str, Any]
    large: list[str]
    lists: dict[str, list[int | None]]


def encode_record(record: Record) -> bytes:
    """Return the bytes of a record."""
    return _encode(record)


def decode_record(data: bytes) -> Record:
    """Return the record that has these bytes."""
    return _decode(data)


_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(ready(Record)).decode


def session_of(thread: str) -> str:
    """Return the name of a thread's session."""
    return session_name(f"{PREFIX}{thread}")


def thread_key(thread: str) -> str:
    """Return the key of a thread's session; raises ``InvalidName`` for an id that none can have."""
    try:
        return check_key(f"{ROOT}:{thread}")
    except InvalidName as error:
        start = thread if len(thread) <= SHOWN else f"{thread[:SHOWN]}…"
        most = MAX_KEY - len(ROOT) - 1
        raise InvalidName(
            f"No thread of a graph can have the id {start!a}.",
            hint=f"The id of a thread is any valid text of up to {most:,} characters.",
        ) from error


def thread_of(key: str | None) -> str | None:
    """Return the thread whose session has a key; None if it is another session."""
    return key.removeprefix(f"{ROOT}:") if key and key.startswith(f"{ROOT}:") else None


def graph_path(namespace: str) -> tuple[str, ...]:
    """Return where the state has the lists and large values of a namespace."""
    return (*GRAPHS, _short(namespace))


def checkpoint_key(namespace: str, id: str) -> str:
    """Return the key of the session's checkpoint for one of the graph."""
    return f"{_short(namespace)}@{id}"


def _short(namespace: str) -> str:
    # Nested subgraphs have long namespaces, and keys have a limit.
    return namespace if len(namespace) <= MAX_NAMESPACE else session_name(namespace)
