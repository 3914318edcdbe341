"""Reading parts of long sessions, and putting whole values: what it costs against reading it all.

All figures are processor time, and each is compared with the plain way in the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random
from time import process_time
from typing import Any

from blake3 import blake3

import mulligan
from benchmarks import harness
from benchmarks.harness import Result, Row, Setting, Table, Target
from benchmarks.timing import MILLISECONDS, median, timed_with_cpu
from mulligan import Session, Store
from mulligan.store import engine_of

TARGETS = (
    Target("walk", "a replay for each of 100 old points against a walk", at_least=10, unit=" ×"),
    Target("points", "the same against the points in a row", at_least=8, unit=" ×"),
    Target("tail", "the whole list against its last ten items", at_least=50, unit=" ×"),
    Target("pop ms", "the last item of 20,000 taken off", at_most=1, unit=" ms", full_only=True),
    Target(
        "put", "a put of 2,000 items by a new handle against the next one", at_least=8, unit=" ×"
    ),
    Target("put growth", "a put of 20,000 items against one of 2,000", at_most=3, unit=" ×"),
    Target("keys", "the bytes of keys in the order of time against a list", at_most=2, unit=" ×"),
)

BATCH = 20
"""How many events of the dictionaries are one transaction: syncs are not what is measured."""


def run(setting: Setting) -> Result:
    """Measure each way beside the plain one."""
    with mulligan.open(setting.directory / "store") as store:
        parts = [_points(store, setting), _lists(store, setting), _puts(store, setting)]
    parts.append(_dicts(setting))
    found = Result([table for table, _ in parts])
    for _, measures in parts:
        found.measures.update(measures)
    return found


def _cpu(call: Callable[[], object], times: int = 1) -> float:
    """The milliseconds of processor time that a call takes: the median of several."""
    return median([timed_with_cpu(call).cpu for _ in range(times)]) * MILLISECONDS


def _message(number: int, length: int = 1_000) -> dict[str, Any]:
    return {"role": "user", "content": f"{number} " + "x" * length, "n": number}


def _points(store: Store, setting: Setting) -> tuple[Table, dict[str, float]]:
    session, seqs = store.session("points"), []
    for number in range(setting.choose(full=700, quick=400)):
        session.state.append("log", _message(number))
        seqs.append(session.checkpoint("routine").seq)
    wanted = seqs[-300:-200][::-1]

    def each() -> None:
        for seq in wanted:
            # A handle of its own knows no document, so each replays from a keyframe.
            store.session("points").state.at(seq).get("log/-1")

    def in_a_row() -> None:
        fresh = store.session("points")
        for seq in wanted:
            fresh.state.at(seq).get("log/-1")

    def walked() -> None:
        for _, state in store.session("points").checkpoints.walk(limit=100, until=wanted[0]):
            state.get("log/-1")

    spent = {"a replay each": _cpu(each), "in a row": _cpu(in_a_row, 3), "walk": _cpu(walked, 3)}
    rows: list[Row] = [{"way": way, "ms of processor": ms} for way, ms in spent.items()]
    plain = spent["a replay each"]
    measures = {"walk": plain / spent["walk"], "points": plain / spent["in a row"]}
    return Table("100 old checkpoints, newest first", rows), measures


def _lists(store: Store, setting: Setting) -> tuple[Table, dict[str, float]]:
    size = setting.choose(full=20_000, quick=5_000)
    store.session("lists").state.extend("log", [_message(n) for n in range(size)])
    state = store.session("lists").state
    state.length("log")
    ways: dict[str, Callable[[], object]] = {
        "get, and the last ten of it": lambda: state.get("log")[-10:],
        "tail(10)": lambda: state.tail("log", 10),
        "slice of ten in the middle": lambda: state.slice("log", size // 2, size // 2 + 10),
        "length": lambda: state.length("log"),
        "pop": lambda: state.pop("log"),
        "truncate by 1,000": lambda: state.truncate("log", state.length("log") - 1_000),
    }
    spent = {way: _cpu(call, 3) for way, call in ways.items()}
    rows: list[Row] = [{"way": way, "ms of processor": ms} for way, ms in spent.items()]
    ratio = spent["get, and the last ten of it"] / spent["tail(10)"]
    return Table(f"a list of {size:,} messages of 1 KB", rows), {
        "tail": ratio,
        "pop ms": spent["pop"],
    }


def _puts(store: Store, setting: Setting) -> tuple[Table, dict[str, float]]:
    rows: list[Row] = []
    ratio, puts = 0.0, dict[int, float]()
    for size in (200, 2_000, 20_000, 200_000)[: setting.choose(full=4, quick=3)]:
        session, numbers = store.session(f"puts of {size}".replace(" ", "-")), count(size)
        # Short ones in the longest list: a handle remembers no more than 64 MB.
        length = 1_000 if size <= 20_000 else 100
        log = [_message(number, length) for number in range(size)]
        session.state.put("log", log)

        def grow(
            by: Session, log: list[Any] = log, numbers: Any = numbers, length: int = length
        ) -> None:
            log.append(_message(next(numbers), length))
            by.state.put("log", log)

        handles = [store.session(session.name) for _ in range(5 if size <= 20_000 else 1)]
        for handle in handles:
            handle.state.length("log")
        new = median([_cpu(lambda h=handle: grow(h)) for handle in handles])  # type: ignore[misc]
        grow(session)
        known = puts[size] = _cpu(lambda s=session: grow(s), 20)  # type: ignore[misc]
        append = _cpu(lambda s=session: s.state.append("other", _message(1)), 20)  # type: ignore[misc]
        ratio = new / known if size == 2_000 else ratio
        rows.append(
            {"items": size, "new handle ms": new, "next put ms": known, "append ms": append}
        )
    return Table("a list that grew by one, put as a whole", rows), {
        "put": ratio,
        "put growth": puts[20_000] / puts[2_000],
    }


def _dicts(setting: Setting) -> tuple[Table, dict[str, float]]:
    number = setting.choose(full=20_000, quick=4_000)
    ways: dict[str, Callable[[Session, int, Any], None]] = {
        "a list": lambda s, _, value: s.state.append("log", value),
        "a dictionary, keys in order": lambda s, i, value: s.state.set(("log", f"{i:08}"), value),
        "a dictionary, random keys": lambda s, i, value: s.state.set(
            ("log", blake3(b"%d" % i).hexdigest()[:16]), value
        ),
        "a dictionary, written over": lambda s, i, value: s.state.set(
            ("log", f"{i if i < number // 4 else i * 7919 % (number // 4):08}"), value
        ),
    }
    rows: list[Row] = []
    stored: dict[str, float] = {}
    for way, write in ways.items():
        chance = Random(1)
        with mulligan.open(setting.directory / way.replace(" ", "-")) as store:
            session, before = store.session("run"), process_time()
            for start in range(0, number, BATCH):
                with session.batch():
                    for index in range(start, min(start + BATCH, number)):
                        text = chance.randbytes(150).hex()
                        write(session, index, {"role": "user", "content": text})
            with engine_of(store).read() as view:
                stored[way] = sum(view.area_lengths().values()) / 1_000_000
            spent = process_time() - before
        rows.append({"kept in": way, "MB of objects": stored[way], "s of processor": spent})
    ratio = stored["a dictionary, keys in order"] / stored["a list"]
    return Table(f"{number:,} values of 300 bytes, one event each", rows), {"keys": ratio}


BENCHMARK = harness.Benchmark("reads", "Parts of long sessions", TARGETS, run)

if __name__ == "__main__":
    raise SystemExit(harness.main(BENCHMARK))
