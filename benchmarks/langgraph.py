"""A LangGraph agent with a long conversation: what its checkpoints cost with each saver.

Every saver runs the same graph: one node that adds one message of 1 KB a step. The SQLite saver
also runs it with a ``DeltaChannel``, for which a program has to change the type of its state. That
one and ours take turns, step by step: the disk of a shared machine is ten times slower at times,
and both must meet it as it is.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
    Target(
        "save/delta",
        "saving a step, writes and put, beside the SQLite saver with DeltaChannel, by the clock",
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

    ``saves`` is how long the saver was at work for each step, by the clock: the put and the writes
    before it. ``step`` is what a whole step of the graph takes by the clock.
    """

    puts: list[float]
    put_wall: list[float]
    writes: list[float]
    saves: list[float]
    step: float
    get: float
    listing: float
    bytes: int


def run(setting: Setting) -> Result:
    """Run the graph with each saver in turn."""
    count = setting.choose(full=2_000, quick=400)
    texts = [str(message["content"]) for message in text_messages(count)]
    runs = {
        OURS: Run(_mulligan(setting.directory / "ours"), texts, delta=False),
        DELTA: Run(_sqlite(setting.directory / "delta"), texts, delta=True),
        SQLITE: Run(_sqlite(setting.directory / "sqlite"), texts, delta=False),
    }
    _in_turns(runs[OURS], runs[DELTA])
    _in_turns(runs[SQLITE])
    get = _get_states(runs)
    found = {name: runs[name].measured(get[name]) for name in (OURS, SQLITE, DELTA)}
    raw = raw_size(text_messages(count))
    bare = {name: f"{one * MILLISECONDS:.2f} ms" for name, one in _commits(setting).items()}
    notes = [
        f"{count:,} messages of 1 KB; processor time, but for put and step by the clock",
        "ours and the DeltaChannel in turns, step by step; all savers wait for the disk at a put",
        f"get_state: the best of {ROUNDS}, in turns, by the same process",
        "ours saves the writes of a step in the transaction of its put if they come together",
        f"by the clock, in turns, a durable commit of 1 KB alone: LMDB {bare['lmdb']}, in as many "
        f"tables as a put {bare['tables']}; SQLite {bare['sqlite']}",
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
            "both by the clock": _last(one.saves) * MILLISECONDS,
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
        "save/delta": _last(ours.saves) / _last(delta.saves),
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


class Turns:
    """Lets graphs run one step at a time, one after the other."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._order: deque[Run] = deque()

    def enter(self, run: Run) -> None:
        """Add a graph that is going to run."""
        self._order.append(run)

    def next(self, run: Run) -> None:
        """End the turn of a graph, and wait for its next one."""
        with self._changed:
            if self._order[0] is run:
                self._order.rotate(-1)
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._order[0] is run)

    def leave(self, run: Run) -> None:
        """The graph has ended."""
        with self._changed:
            self._order.remove(run)
            self._changed.notify_all()


def _in_turns(*runs: Run) -> None:
    turns = Turns()
    for run in runs:
        turns.enter(run)
    with ThreadPoolExecutor(len(runs)) as pool:
        for future in [pool.submit(run.through, turns) for run in runs]:
            future.result()


ROUNDS = 9
"""How often the state is read with each saver."""


def _get_states(runs: dict[str, Run]) -> dict[str, float]:
    found = [{name: run.get_state() for name, run in runs.items()} for _ in range(ROUNDS)]
    return {name: min(one[name] for one in found) for name in runs}


class Run:
    """A graph with a saver, from its first message to its last."""

    def __init__(self, opened: _Saver, texts: list[str], *, delta: bool) -> None:
        self._opened, self._count = opened, len(texts)
        self._puts, self._put_calls = _timed(opened.saver, "put")
        self._writes, self._write_calls = _timed(opened.saver, "put_writes")
        self._graph = _graph(texts, opened.saver, self._next_step, delta=delta)
        self._turns: Turns | None = None
        self._steps: list[float] = []
        self._started = 0.0

    def through(self, turns: Turns) -> None:
        """Run the graph to its end."""
        self._turns = turns
        # Each save is waited for, so that none runs beside another step.
        config: Any = {**CONFIG, "recursion_limit": self._count + 10}
        try:
            self._graph.invoke({"messages": []}, config, durability="sync")
        finally:
            turns.leave(self)

    def _next_step(self) -> None:
        """Note how long a step took; called at the beginning of each."""
        if self._turns is not None:
            self._steps.append(time.perf_counter() - self._started)
            self._turns.next(self)
        self._started = time.perf_counter()

    def get_state(self) -> float:
        """Return the seconds of processor that reading the latest state takes."""
        return _spent(
            lambda: len(self._graph.get_state(CONFIG).values["messages"]), expected=self._count
        )

    def measured(self, get: float) -> Measured:
        """Measure the rest, close the saver, and return everything."""
        saver, count = self._opened.saver, self._count
        listing = _spent(lambda: sum(1 for _ in saver.list(CONFIG)), expected=count + 2)
        size = occupied(self._opened.directory)
        self._opened.close()
        # The first one includes everything before the first step.
        step = sum(self._steps[1:]) / len(self._steps[1:])
        put_wall = [ended - started for started, ended in self._put_calls]
        saves = _saves(self._put_calls, self._write_calls)
        return Measured(self._puts, put_wall, self._writes, saves, step, get, listing, size)


COMMITS = 300
"""How many commits of a bare database are made; the last third is measured."""


def _commits(setting: Setting) -> dict[str, float]:
    """Return the seconds of durable commits, made in turns: no put can go below those of LMDB."""
    made = {
        "lmdb": _lmdb_commit(setting.directory / "bare-lmdb", tables=1),
        "tables": _lmdb_commit(setting.directory / "bare-tables", tables=5),
        "sqlite": _sqlite_commit(setting.directory / "bare.sqlite"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for number in range(COMMITS):
        for name, commit in made.items():
            seconds[name].append(timed(commit, number)[0])
    return {name: median(found[-COMMITS // 3 :]) for name, found in seconds.items()}


def _lmdb_commit(directory: Path, *, tables: int) -> Callable[[int], None]:
    """Return what commits 1 KB to LMDB, and a small record to each other table."""
    import lmdb

    environment = lmdb.open(str(directory), map_size=1 << 28, max_dbs=tables)
    opened = [environment.open_db(str(number).encode()) for number in range(tables)]

    def commit(number: int) -> None:
        with environment.begin(write=True) as transaction:
            transaction.put(number.to_bytes(8), os.urandom(1024), db=opened[0])
            for table in opened[1:]:
                transaction.put(os.urandom(8), os.urandom(32), db=table)

    return commit


def _sqlite_commit(file: Path) -> Callable[[int], None]:
    """Return what commits 1 KB to SQLite, as its saver configures it."""
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, bytes BLOB)")

    def commit(number: int) -> None:
        connection.execute("INSERT INTO rows VALUES (?, ?)", (number, os.urandom(1024)))
        connection.commit()

    return commit


_Call = tuple[float, float]
"""When a call started and when it ended, by the clock."""


def _saves(puts: list[_Call], writes: list[_Call]) -> list[float]:
    """Return how long a saver was at work for each put: in it, or in the writes before it."""
    seconds, left = [], sorted(writes)
    for started, ended in puts:
        before = [one for one in left if one[0] < ended]
        del left[: len(before)]
        # Calls that overlap are waited for once.
        first = sum(min(stop, started) - min(start, started) for start, stop in before)
        seconds.append(first + ended - started)
    return seconds


def _timed(saver: Any, name: str) -> tuple[list[float], list[_Call]]:
    """Let a method of a saver note its seconds of processor, and when it was called."""
    call, processor, calls = getattr(saver, name), list[float](), list[_Call]()

    def noting(*args: Any, **kwargs: Any) -> Any:
        started, clock = time.thread_time(), time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            processor.append(time.thread_time() - started)
            calls.append((clock, time.perf_counter()))

    setattr(saver, name, noting)
    return processor, calls


def _spent(call: Callable[[], int], *, expected: int) -> float:
    started = time.process_time()
    found = call()
    seconds = time.process_time() - started
    if found != expected:
        raise AssertionError(f"{found} instead of {expected}")
    return seconds


def _graph(texts: list[str], saver: Any, begin: Callable[[], None], *, delta: bool) -> Any:
    from langchain_core.messages import AIMessage
    from langgraph.channels import DeltaChannel
    from langgraph.graph import END, START, StateGraph
    from langgraph.graph.message import add_messages

    def merge(state: list[Any], writes: Any) -> list[Any]:
        return [*state, *(message for write in writes for message in write)]

    how = DeltaChannel(merge) if delta else add_messages
    State = TypedDict("State", {"messages": Annotated[list[Any], how]})  # noqa: UP013

    def speak(state: Any) -> Any:
        begin()
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
