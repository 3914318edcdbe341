"""A LangGraph agent with a long conversation: what its checkpoints cost with each saver.

Every saver runs the same graph: one node that adds one message of 1 KB a step. The SQLite saver
also runs it with a ``DeltaChannel``, for which a program has to change the type of its state.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

from benchmarks import harness
from benchmarks.harness import Result, Row, Setting, Table, Target
from benchmarks.messages import raw_size, text_messages
from benchmarks.timing import MILLISECONDS, median, occupied, timed

EDGE = 50
"""How many puts at the beginning and at the end are compared."""

OURS, SQLITE, DELTA = "mulligan", "SQLite saver", "SQLite saver, DeltaChannel"

TARGETS = (
    Target("put ms", "processor time of a put, last 50 steps", at_most=1.5, unit=" ms"),
    Target("flat", "the last 50 puts beside the first 50", at_most=1.3, unit="×"),
    Target(
        "sqlite/put",
        "a put of the SQLite saver beside ours",
        at_least=5.0,
        unit="×",
        full_only=True,  # its cost grows with the conversation
    ),
    Target(
        "put/delta",
        "a put beside the SQLite saver with DeltaChannel, by the clock",
        at_most=3.0,
        unit="×",
    ),
    Target("store/messages", "the store beside the messages", at_most=4.0, unit="×"),
    Target("get/sqlite", "get_state beside the SQLite saver's", at_most=1.0, unit="×"),
    Target("sqlite/list", "listing of the SQLite saver beside ours", at_least=5.0, unit="×"),
)

CONFIG: Any = {"configurable": {"thread_id": "bench"}}


class Measured(NamedTuple):
    """What one saver cost: seconds of processor for each put and call, and bytes on disk.

    ``step`` is what a step of the graph takes by the clock, put and writes included.
    """

    puts: list[float]
    put_wall: list[float]
    writes: list[float]
    step: float
    get: float
    listing: float
    bytes: int


def run(setting: Setting) -> Result:
    """Run the graph with each saver in turn."""
    count = setting.choose(full=2_000, quick=400)
    texts = [str(message["content"]) for message in text_messages(count)]
    found = {
        OURS: _measured(_mulligan(setting.directory / "ours"), texts, delta=False),
        SQLITE: _measured(_sqlite(setting.directory / "sqlite"), texts, delta=False),
        DELTA: _measured(_sqlite(setting.directory / "delta"), texts, delta=True),
    }
    raw = raw_size(text_messages(count))
    lmdb, sqlite = _lmdb_commit(setting.directory), _sqlite_commit(setting.directory)
    notes = [
        f"{count:,} messages of 1 KB; processor time, but for put and step by the clock",
        "get_state: the best of three, by the same process; all savers wait for the disk at a put",
        "ours saves the writes of a step in the transaction of its put if they come together",
        f"by the clock, a durable commit of 1 KB alone: LMDB {lmdb * MILLISECONDS:.2f} ms, "
        f"SQLite {sqlite * MILLISECONDS:.2f} ms",
    ]
    table = Table("a graph with a long conversation", _rows(found, raw), notes)
    return Result([table], _measures(found, raw))


def _rows(found: dict[str, Measured], raw: int) -> list[Row]:
    return [
        {
            "saver": name,
            "put ms, first 50": _first(one.puts) * MILLISECONDS,
            "last 50": _last(one.puts) * MILLISECONDS,
            "put by the clock": _last(one.put_wall) * MILLISECONDS,
            "put_writes": _last(one.writes) * MILLISECONDS,
            "step by the clock": one.step * MILLISECONDS,
            "get_state": one.get * MILLISECONDS,
            "listing s": one.listing,
            "× messages": one.bytes / raw,
        }
        for name, one in found.items()
    ]


def _measures(found: dict[str, Measured], raw: int) -> dict[str, float]:
    ours, sqlite, delta = found[OURS], found[SQLITE], found[DELTA]
    return {
        "put ms": _last(ours.puts) * MILLISECONDS,
        "flat": _last(ours.puts) / _first(ours.puts),
        "sqlite/put": _last(sqlite.puts) / _last(ours.puts),
        "put/delta": _last(ours.put_wall) / _last(delta.put_wall),
        "store/messages": ours.bytes / raw,
        "get/sqlite": ours.get / sqlite.get,
        "sqlite/list": sqlite.listing / ours.listing,
    }


def _first(seconds: list[float]) -> float:
    # The very first ones open the store and import modules.
    return median(seconds[5 : 5 + EDGE])


def _last(seconds: list[float]) -> float:
    return median(seconds[-EDGE:])


class _Saver(NamedTuple):
    saver: Any
    directory: Path
    close: Callable[[], None]


def _mulligan(directory: Path) -> _Saver:
    from mulligan.integrations.langgraph import MulliganSaver

    saver = MulliganSaver(directory)
    return _Saver(saver, directory, saver.close)


def _sqlite(directory: Path) -> _Saver:
    from langgraph.checkpoint.sqlite import SqliteSaver

    directory.mkdir()
    connection = sqlite3.connect(directory / "checkpoints.sqlite", check_same_thread=False)
    return _Saver(SqliteSaver(connection), directory, connection.close)


def _measured(opened: _Saver, texts: list[str], *, delta: bool) -> Measured:
    saver = opened.saver
    puts, put_wall = _timed(saver, "put")
    writes, _ = _timed(saver, "put_writes")
    graph = _graph(texts, saver, delta=delta)
    start: Any = {"messages": []}
    # Each save is waited for, so that none runs beside another step.
    config: Any = {**CONFIG, "recursion_limit": len(texts) + 10}
    seconds, _ = timed(graph.invoke, start, config, durability="sync")
    get = _best(lambda: len(graph.get_state(CONFIG).values["messages"]), expected=len(texts))
    listing = _best(lambda: sum(1 for _ in saver.list(CONFIG)), expected=len(texts) + 2, rounds=1)
    size = occupied(opened.directory)
    opened.close()
    return Measured(puts, put_wall, writes, seconds / len(texts), get, listing, size)


COMMITS = 100
"""How many commits of a bare database are measured."""


def _lmdb_commit(directory: Path) -> float:
    """Return the seconds of a durable commit to LMDB, which no put of ours can go below."""
    import lmdb

    environment = lmdb.open(str(directory / "bare-lmdb"), map_size=1 << 28)

    def commit(number: int) -> None:
        with environment.begin(write=True) as transaction:
            transaction.put(number.to_bytes(8), os.urandom(1024))

    seconds = median([timed(commit, number)[0] for number in range(COMMITS)])
    environment.close()
    return seconds


def _sqlite_commit(directory: Path) -> float:
    """Return the seconds of a durable commit to SQLite, as its saver configures it."""
    connection = sqlite3.connect(directory / "bare.sqlite")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, bytes BLOB)")

    def commit(number: int) -> None:
        connection.execute("INSERT INTO rows VALUES (?, ?)", (number, os.urandom(1024)))
        connection.commit()

    seconds = median([timed(commit, number)[0] for number in range(COMMITS)])
    connection.close()
    return seconds


def _timed(saver: Any, name: str) -> tuple[list[float], list[float]]:
    """Let a method of a saver note the seconds of processor and of the clock that it takes."""
    call, processor, wall = getattr(saver, name), list[float](), list[float]()

    def noting(*args: Any, **kwargs: Any) -> Any:
        started, clock = time.thread_time(), time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            processor.append(time.thread_time() - started)
            wall.append(time.perf_counter() - clock)

    setattr(saver, name, noting)
    return processor, wall


def _best(call: Callable[[], int], *, expected: int, rounds: int = 3) -> float:
    seconds = []
    for _ in range(rounds):
        started = time.process_time()
        found = call()
        seconds.append(time.process_time() - started)
        if found != expected:
            raise AssertionError(f"{found} instead of {expected}")
    return min(seconds)


def _graph(texts: list[str], saver: Any, *, delta: bool) -> Any:
    from langchain_core.messages import AIMessage
    from langgraph.channels import DeltaChannel
    from langgraph.graph import END, START, StateGraph
    from langgraph.graph.message import add_messages

    def merge(state: list[Any], writes: Any) -> list[Any]:
        return [*state, *(message for write in writes for message in write)]

    how = DeltaChannel(merge) if delta else add_messages
    State = TypedDict("State", {"messages": Annotated[list[Any], how]})  # noqa: UP013

    def speak(state: Any) -> Any:
        number = len(state["messages"])
        return {"messages": [AIMessage(content=texts[number], id=f"message-{number}")]}

    def again(state: Any) -> Any:
        return "speak" if len(state["messages"]) < len(texts) else END

    builder = StateGraph(State)
    builder.add_node("speak", speak)
    builder.add_edge(START, "speak")
    builder.add_conditional_edges("speak", again)
    return builder.compile(checkpointer=saver)


BENCHMARK = harness.Benchmark("langgraph", "LangGraph checkpoints", TARGETS, run)

if __name__ == "__main__":
    raise SystemExit(harness.main(BENCHMARK))
