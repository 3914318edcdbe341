"""Races between one operation and one collection, each run step by step.

Left to chance, a collection hardly ever falls between the look-up of an operation and its commit.
Here the operation is stopped there, a collection runs until it waits or ends, and then the
operation goes on. docs/FORMAT.md, chapter 8.1, says why nothing is lost; each race loses an object
if a protection that it names is taken out (``mulligan.testing.protections``).
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mulligan import codec
from mulligan.clock import SystemClock
from mulligan.document.fold import small_event
from mulligan.engine import Engine
from mulligan.failpoints import Failpoint
from mulligan.model import Digest, ObjectKind
from mulligan.session import Session
from mulligan.store import Store
from mulligan.testing.protections import PROTECTIONS
from mulligan.testing.stepped import END, SteppedProcess, Stop, stop_at
from mulligan.testing.stores import open_store
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.space.reclaim_space import reclaim

NAME = "race"
SIZES = (30, 5_000, 70_000, 300_000)
FILES = 3

WAITING = "waiting"
MAX_WAITS = 12
"""A collection that has slept this often without getting on waits for a pin."""

LOOKED_UP = Failpoint.PACK_SYNCED
"""Between the look-up of objects and the commit that refers to them."""

GC_STOPS = (Failpoint.GC_STARTED, Failpoint.GC_CONDEMNED, Failpoint.GC_GRACE_OVER)


class _StoppingClock(SystemClock):
    """Stops where the process would sleep; nothing sleeps."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop

    def sleep(self, seconds: float) -> None:
        self._stop(WAITING)


class Races:
    """Runs races on the store in a directory; ``without`` names a protection to take out."""

    def __init__(self, place: Path, rng: random.Random, without: str | None = None) -> None:
        place.mkdir(exist_ok=True)
        self._store = place / "store"
        self._work = place / "race"
        self._copy = place / "race-copy"
        self._rng = rng
        self._without = without
        self._children: list[SteppedProcess] = []

    def run(self, kind: str) -> list[str]:
        """Run one race; return what is wrong afterwards."""
        try:
            return [f"{kind}: {problem}" for problem in RACES[kind](self)]
        finally:
            for child in self._children:
                child.kill()
            self._children.clear()

    def referring(self) -> list[str]:
        """A checkpoint finds garbage, and a collection runs before it is committed.

        Needs pins, the grace period, and marking again after it.
        """
        garbage = self._make_garbage()
        writer = self._child(partial(self._checkpoint, garbage), LOOKED_UP)
        problems = _unless(writer.until(LOOKED_UP), LOOKED_UP)
        collector = self._collector()
        self._collect_until_held(collector)
        problems += _unless(writer.until(), END)
        problems += _unless(collector.until(), END)
        return problems + self._check(garbage)

    def condemned(self) -> list[str]:
        """A checkpoint looks condemned objects up, and is committed after the sweep.

        Needs the look-up that leaves condemned objects out.
        """
        garbage = self._make_garbage()
        collector = self._collector()
        collector.until(Failpoint.GC_GRACE_OVER)
        writer = self._child(partial(self._checkpoint, garbage), LOOKED_UP)
        problems = _unless(writer.until(LOOKED_UP), LOOKED_UP)
        self._collect_until_held(collector)
        problems += _unless(writer.until(), END)
        problems += _unless(collector.until(), END)
        return problems + self._check(garbage)

    def stored_alone(self) -> list[str]:
        """A value is stored without an event; a later operation refers to it, and not to its parts.

        Needs the list of fresh values.
        """
        self._make_garbage()
        part = self._rng.randbytes(6_000)
        with open_store(self._store) as store:
            _store_value(store._engine, _with_parent(part)[0])  # garbage: nothing refers to it
        first = self._child(partial(self._store_parent, part), LOOKED_UP)
        problems = _unless(first.until(LOOKED_UP), LOOKED_UP)
        collector = self._collector()
        self._collect_until_held(collector)
        problems += _unless(first.until(), END)
        collector.until(Failpoint.GC_GRACE_OVER)
        second = self._child(partial(self._refer_to_parent, part), LOOKED_UP)
        problems += _unless(second.until(LOOKED_UP), LOOKED_UP)
        self._collect_until_held(collector)
        problems += _unless(second.until(), END)
        problems += _unless(collector.until(), END)
        return problems + self._check()

    def flushed_early(self) -> list[str]:
        """A frame is written, acknowledged by another commit, and committed after a collection.

        Needs pins, the grace period, and the look at the index after it.
        """
        self._make_garbage()
        collector = self._collector()
        # Past the grace period of the sweep: the next one is that of freeing.
        collector.until(Failpoint.GC_GRACE_OVER)
        writer = self._child(partial(self._flush_early, self._rng.randbytes(90_000)))
        problems = _unless(writer.until("flushed"), "flushed")
        self._collect_until_held(collector)
        problems += _unless(writer.until(), END)
        problems += _unless(collector.until(), END)
        return problems + self._check()

    def reading(self) -> list[str]:
        """A copy of files starts; before it goes on, its checkpoint is pruned and collected.

        Needs pins and the grace period.
        """
        garbage = self._files()
        with open_store(self._store) as store:
            old = self._take(store, garbage)
            self._take(store, self._files())
        reader = self._child(partial(self._read, old))
        problems = _unless(reader.until("looked up"), "looked up")
        with open_store(self._store) as store:
            _prune_all_but_newest(store)
        collector = self._collector()
        self._collect_until_held(collector)
        problems += _unless(reader.until(), END)
        problems += _unless(collector.until(), END)
        return problems + self._check()

    def restoring(self) -> list[str]:
        """A restore starts; before it goes on, its target is pruned and collected."""
        files = self._files()
        with open_store(self._store) as store:
            old = self._take(store, files)
            self._take(store, self._files())
        writer = self._child(partial(self._restore, old), Failpoint.RESTORE_MARKED)
        problems = _unless(writer.until(Failpoint.RESTORE_MARKED), Failpoint.RESTORE_MARKED)
        with open_store(self._store) as store:
            _prune_all_but_newest(store)
        collector = self._collector()
        self._collect_until_held(collector)
        problems += _unless(writer.until(), END)
        problems += _unless(collector.until(), END)
        return problems + self._check() + _differences(self._work, files)

    def _child(self, act: Callable[[Store, Stop], None], *points: Failpoint) -> SteppedProcess:
        """Start a process that acts on the store and stops at failpoints."""

        def run(stop: Stop) -> None:
            if self._without is not None:
                PROTECTIONS[self._without]()
            with open_store(self._store, failpoint=stop_at(points, stop)) as store:
                act(store, stop)

        self._children.append(SteppedProcess(run))
        return self._children[-1]

    def _collector(self) -> SteppedProcess:
        """Start a collection; some die first, wherever they are, and leave their lists behind."""
        if self._rng.random() < 0.3:
            place = self._rng.choice(GC_STOPS)
            killed = self._start_collector()
            if killed.until(place, WAITING) == END:
                return self._start_collector()
            killed.kill()
        return self._start_collector()

    def _start_collector(self) -> SteppedProcess:
        def run(stop: Stop) -> None:
            if self._without is not None:
                PROTECTIONS[self._without]()
            hook, clock = stop_at(GC_STOPS, stop), _StoppingClock(stop)
            with (
                open_store(self._store, failpoint=hook, clock=clock) as store,
                upkeep_lock(store._engine, wait=True),
            ):
                reclaim(store._engine)

        self._children.append(SteppedProcess(run))
        return self._children[-1]

    def _collect_until_held(self, collector: SteppedProcess) -> None:
        """Let a collection run until it ends, or waits for a pin."""
        waits = 0
        while waits < MAX_WAITS:
            place = collector.until(WAITING, *GC_STOPS)
            if place == WAITING:
                waits += 1
            elif place in GC_STOPS:
                waits = 0
            else:
                return

    def _files(self) -> dict[str, bytes]:
        """Return new contents of files."""
        sizes = [self._rng.choice(SIZES) for _ in range(FILES)]
        return {f"f{number}": self._rng.randbytes(size) for number, size in enumerate(sizes)}

    def _make_garbage(self) -> dict[str, bytes]:
        """Take a checkpoint and prune it; return the files that only it had."""
        garbage = self._files()
        with open_store(self._store) as store:
            self._take(store, garbage)
            # A patch to that tree, which replaces all files: it needs none of their content.
            self._take(store, self._files())
            _prune_all_but_newest(store)
        return garbage

    def _session(self, store: Store) -> Session:
        self._work.mkdir(exist_ok=True)
        return store.session(NAME, workspace=self._work)

    def _take(self, store: Store, files: dict[str, bytes]) -> str:
        session = self._session(store)
        for name, data in files.items():
            (self._work / name).write_bytes(data)
        return session.checkpoint().id

    def _checkpoint(self, files: dict[str, bytes], store: Store, stop: Stop) -> None:
        # With a new file beside them: only new objects are written and synced before the commit.
        self._take(store, {**files, "new": self._rng.randbytes(50)})

    def _store_parent(self, part: bytes, store: Store, stop: Stop) -> None:
        _store_value(store._engine, *_with_parent(part))

    def _refer_to_parent(self, part: bytes, store: Store, stop: Stop) -> None:
        """Write an event that refers to the parent of a value, which is in the store."""
        engine = store._engine
        number = _number(engine)
        _, parent = _with_parent(part)
        with engine.pin():
            bundle = engine.bundle()
            digest = bundle.put(ObjectKind.VALUE, parent)
            bundle.put(ObjectKind.VALUE, self._rng.randbytes(50))  # something to sync
            event = small_event(
                "state.set", {"path": ["memory", "raced"], "value": codec.Ref(digest)}
            )
            with engine.write(bundle, session=number) as txn:
                txn.append(number, [event], actor="main", epoch=0, time=engine.clock.now())

    def _flush_early(self, data: bytes, store: Store, stop: Stop) -> None:
        engine, session = store._engine, self._session(store)
        with engine.pin():
            bundle = engine.bundle()
            digest = bundle.put(ObjectKind.VALUE, codec.encode(data))
            bundle.flush()
            # Of the same process, so in the same pack: the commit acknowledges the frame above.
            session.state.set("memory/other", data[:100].hex() * 200)
            stop("flushed")
            event = small_event(
                "state.set", {"path": ["memory", "raced"], "value": codec.Ref(digest)}
            )
            number = _number(engine)
            with engine.write(bundle, session=number) as txn:
                txn.append(number, [event], actor="main", epoch=0, time=engine.clock.now())

    def _read(self, checkpoint: str, store: Store, stop: Stop) -> None:
        session = self._session(store)
        with store._engine.pin():
            found = session.checkpoints.at(checkpoint)
            tree = found.workspace
            assert tree is not None
            stop("looked up")
            _read_all(store._engine, tree)

    def _restore(self, checkpoint: str, store: Store, stop: Stop) -> None:
        self._session(store).restore(checkpoint)

    def _check(self, files: dict[str, bytes] | None = None) -> list[str]:
        """Return what is lost; the newest checkpoint must hold these files."""
        with open_store(self._store) as store:
            problems = [str(problem) for problem in store.verify(full=True).problems]
            if files is not None and not problems:
                shutil.rmtree(self._copy, ignore_errors=True)
                problems += map(str, self._session(store).files.copy("@latest", self._copy))
                problems += _differences(self._copy, files)
        return problems


RACES: dict[str, Callable[[Races], list[str]]] = {
    "referring": Races.referring,
    "condemned": Races.condemned,
    "stored alone": Races.stored_alone,
    "flushed early": Races.flushed_early,
    "reading": Races.reading,
    "restoring": Races.restoring,
}


def _unless(place: str, wanted: str) -> list[str]:
    return [] if place == wanted else [f"a process is at {place!r}, not at {wanted!r}"]


def _differences(directory: Path, files: dict[str, bytes]) -> list[str]:
    found = {path.name: path.read_bytes() for path in directory.iterdir()}
    return [f"file {name} is lost" for name, data in files.items() if found.get(name) != data]


def _number(engine: Engine) -> int:
    with engine.read() as view:
        record = view.find(NAME)
    assert record is not None
    return record.number


def _with_parent(part: bytes) -> tuple[bytes, bytes]:
    """Return the encodings of a value and of another that refers to it."""
    encoded = codec.encode(part)
    digest = codec.value_digest(encoded)
    return encoded, codec.encode({"part": codec.Ref(digest), "padding": part[:40]})


def _store_value(engine: Engine, *values: bytes) -> None:
    """Store values without an event."""
    with engine.pin():
        bundle = engine.bundle()
        for value in values:
            bundle.put(ObjectKind.VALUE, value)
        with engine.write(bundle):
            pass


def _read_all(engine: Engine, tree: Digest) -> None:
    """Read a tree and the chunks of its files."""
    value = codec.plain_decoder(engine.load)(engine.load(tree))
    for entry in value.values():
        if entry[0] == "f":
            for start in range(0, len(entry[4]), 32):
                engine.objects.get(ObjectKind.CHUNK, Digest(entry[4][start : start + 32]))


def _prune_all_but_newest(store: Store) -> None:
    engine = store._engine
    number = _number(engine)
    with engine.write(session=number) as txn:
        newest = txn.head(number).checkpoint
        last = newest[0] if newest else 0
        txn.prune(number, [seq for seq, _ in txn.checkpoints(number, 1, last - 1)])
