"""Bit flips and truncations over all files of a store, each of which verify has to find.

``python -m mulligan.testing.bitrot --rounds 1000 [--seed N]`` is part of ``make crash``. In each
round one bit of one file of a store is flipped, or the file is cut short; half of the time its
times stay, as with a failing disk. A process of its own then verifies every byte.
It must find the damage. If it finds none, the damage must be in free space: everything that can be
read from the store must be what it was. The process may not die either way. Then the store is
repaired. Every checkpoint that could be read before must be what it was, byte for byte; so must
every one that the repair does not name as damaged; and verify must find nothing more. All but the
newest events are in the packs as well, so damage to the journal may cost those alone. With
``--journal N``, the journal has N MiB.

With ``--damages N``, each round has two to N damages, also zeroed, swapped and random blocks and
deleted files. Then a checkpoint may be lost with its events; but whatever could be read before must
be what it was, whatever differs must be named, and a second repair must find nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from blake3 import blake3

import mulligan
from mulligan import Session
from mulligan.errors import MulliganError, NotAStore, UnknownFormat
from mulligan.journal.lmdb import clean_close, layout
from mulligan.journal.lmdb.clean_close import DATA
from mulligan.layout import NAME
from mulligan.model import ObjectKind
from mulligan.repair.store import repair_store
from mulligan.store import engine_of
from mulligan.testing.objects import noise
from mulligan.upkeep import PurgeTarget, run_purge
from mulligan.upkeep.drill.files import expected_paths
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.space.gc import collect
from mulligan.upkeep.space.reclaim_space import reclaim
from mulligan.workspace.entries import File

FOUND, SAME, DIFFERENT, ERROR = "found", "free space", "NOT FOUND", "ERROR"
"""How a round ends; the last two are violations, and so is a process that died."""

REPAIRED = "repaired"
SECRET = "key-a1b2c3d4e5f6"  # noqa: S105 -- it is purged from every store that is built here
BLOCK = 4096
UNREADABLE = (layout.Unreadable, struct.error)

CACHES = ("tmp", "locks", "config.toml", ".gitignore")
"""What may be deleted at any time, or was written by a person; verify does not look at it."""


def build(project: Path, journal_bytes: int = 0) -> Path:
    """Make a store with some of everything, also with free space; return its directory.

    Its journal has at least this many bytes.
    """
    files = project / "files"
    files.mkdir(parents=True)
    with mulligan.open(project) as store:
        session = store.session("run", workspace=files, force=True)
        for number in range(12):
            (files / "text.txt").write_text(f"line {number}\n" * 3000)
            (files / f"noise-{number % 3}.bin").write_bytes(noise(30_000, number))
            session.state.append("conversation", f"message {number} " * 60)
            session.checkpoint(label=f"point {number}")
        session.state.set("memory/key", f"the key is {SECRET}")
        (files / "key.env").write_text(SECRET)
        session.checkpoint()
        run_purge(store, PurgeTarget(match=SECRET), by="nobody", reason="leaked")
        (files / "key.env").unlink()
        session.restore("point 4")
        session.fork("point 6", "branch").state.set("x", noise(9_000).hex())
        store.session("other").state.set("text", "long " * 40_000)
        _grow(store.session("other"), project / NAME / "journal" / DATA, journal_bytes)
        engine = engine_of(store)
        with engine.pin():
            bundle = engine.bundle()
            bundle.put(ObjectKind.CHUNK, noise(50_000, 99))  # nothing refers to it
            with engine.write(bundle):
                pass
        with upkeep_lock(engine, wait=True):
            collect(engine)
            reclaim(engine)
        session.checkpoint(label="last")
    return project / NAME


def _grow(session: Session, journal: Path, size: int) -> None:
    """Write events until the journal has this many bytes."""
    while journal.stat().st_size < size:
        with session.batch():
            for number in range(1000):
                value = noise(1_000, journal.stat().st_size + number).hex()
                session.state.set(f"memory/{number % 50}", value)


def content(project: Path) -> str:
    """Return a digest of everything that can be read from a store; raises ``MulliganError``."""
    found = blake3()
    with mulligan.open(project, read_only=True) as store:
        engine = engine_of(store)
        with engine.read() as view:
            places = dict(view.locations())
            for record in view.sessions():
                last = view.head(record.number).seq
                said: list[Any] = [
                    record,
                    view.labels(record.number),
                    view.steps_back(record.number),
                ]
                said += [view.folds(record.number), view.checkpoints(record.number, 1, last)]
                said += [event.hash for event in view.remaining(record.number, 1, last)]
                found.update(msgspec.msgpack.encode(said))
        for kind in (ObjectKind.VALUE, ObjectKind.CHUNK):
            for digest, data in sorted(engine.objects.get_all(kind, places)):
                found.update(digest + data)
        for session in store.sessions():
            found.update(msgspec.json.encode(session.state.get("")))
    return found.hexdigest()


def targets(store: Path) -> list[Path]:
    """Return the files of a store that hold what was written, by their sizes."""
    files = [path for path in sorted(store.rglob("*")) if path.is_file() and path.stat().st_size]
    return [file for file in files if file.relative_to(store).parts[0] not in CACHES]


def damage(file: Path, rng: random.Random) -> str:
    """Flip a bit of a file or cut it; return what was done."""
    data, status = bytearray(file.read_bytes()), file.stat()
    is_table_list = file.name == DATA and rng.random() < 0.25
    at = rng.choice(_table_list(file)) if is_table_list else rng.randrange(len(data))
    if is_table_list or rng.random() < 0.8:
        bit = rng.randrange(8)
        data[at] ^= 1 << bit
        done = f"bit {bit} of byte {at} flipped"
    else:
        del data[at:]
        done = f"cut to {at} bytes"
    file.write_bytes(data)
    if rng.random() < 0.5:
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        done += ", with the same times"
        _keep_mark(file)
    return done


def damage_more(file: Path, rng: random.Random) -> str:
    """Damage a file in any way that a disk, or a person, does; return what was done."""
    kind = rng.choices(("bit", "zeros", "noise", "swap", "deletion"), (52, 20, 10, 10, 8))[0]
    if kind == "bit":
        return damage(file, rng)
    if kind == "deletion":
        file.unlink()
        return "deleted"
    data = bytearray(file.read_bytes())
    one, other = (rng.randrange(len(data)) // BLOCK * BLOCK for _ in range(2))
    size = min(BLOCK, len(data) - max(one, other))
    first, second = bytes(data[one : one + size]), bytes(data[other : other + size])
    if kind == "swap":
        data[other : other + size] = first
    made = {"zeros": bytes(size), "noise": rng.randbytes(size), "swap": second}[kind]
    data[one : one + size] = made
    file.write_bytes(data)
    return f"{size} bytes of {kind} at {one}" + (f" with {other}" if kind == "swap" else "")


def _table_list(file: Path) -> range:
    """Return the bytes of a journal in which LMDB lists its tables, a very small part of it."""
    with file.open("rb") as journal:
        newest = layout.commits(journal.fileno())[0]
        page = newest.main.root * newest.page_size
        upper = layout.PAGE.unpack(os.pread(journal.fileno(), layout.PAGE.size, page))[4]
    return range(page + upper, page + newest.page_size)


def _keep_mark(file: Path) -> None:
    """Let the mark of a clean close match a damaged journal, whose change time cannot be set."""
    mark = clean_close.read(file.parent) if file.name == DATA else None
    if mark is not None:
        clean_close.write(file.parent, clean_close.look(file), mark.commit, mark.digest)


def in_child(work: Callable[[], str], out: Path) -> str:
    """Run work in a process of its own; return what it returns, or how it died."""
    out.write_text("")
    if (pid := os.fork()) == 0:
        _child(work, out)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return f"DIED of signal {os.WTERMSIG(status)}"
    return out.read_text()


def _child(work: Callable[[], str], out: Path) -> NoReturn:
    try:
        out.write_text(work())
    except BaseException as error:
        out.write_text(f"{ERROR}: {type(error).__name__}: {error}")
    finally:
        os._exit(0)


def check(project: Path, before: str) -> str:
    """Verify every byte of a damaged store; return how that ended."""
    try:
        with mulligan.open(project, create=False, salvage=True) as store:
            if not store.verify().ok:
                return FOUND
    except MulliganError:
        return FOUND
    try:
        return SAME if content(project) == before else DIFFERENT
    except MulliganError as error:
        return f"{DIFFERENT}: {error}"


NEWEST = "last"
"""The label of the newest checkpoint, whose event is in the journal alone."""


def points(project: Path, *, salvage: bool = False) -> dict[str, str]:
    """Return a digest of state and files of every labelled checkpoint that can be read."""
    found: dict[str, str] = {}
    with suppress(MulliganError), mulligan.open(project, create=False, salvage=salvage) as store:
        session = store.session("run", create=False)
        for label in [f"point {number}" for number in range(12)] + [NEWEST]:
            with suppress(MulliganError):
                found[label] = _point(session, label)
    return found


def _point(session: Session, label: str) -> str:
    engine, found = session.internal.engine, blake3()
    found.update(msgspec.json.encode(session.state.at(label).get()))
    held = session.internal.files_at(label)
    for path, entry in expected_paths(engine, held.tree) if held else ():
        found.update(msgspec.msgpack.encode([path, entry]))
        for chunk in entry.chunks if isinstance(entry, File) else ():
            found.update(engine.objects.get(ObjectKind.CHUNK, chunk))
    return found.hexdigest()


def repair(project: Path, sound: dict[str, str], *, is_journal: bool) -> str:
    """Repair a damaged store; return what is wrong afterwards, or ``REPAIRED``."""
    before = points(project, salvage=True)
    done = repair_store(project / NAME, {"HOME": str(project.parent)})
    if done.report is None or not done.report.ok:
        return f"verify still finds {done.report and done.report.problems[:3]}"
    after = points(project)
    damaged = {one.label for one in done.damaged}
    for label, expected in sound.items():
        was_intact = before.get(label) == expected or (is_journal and label != NEWEST)
        is_lost = label == NEWEST if is_journal else label in damaged
        if after.get(label) != expected and (was_intact or not is_lost):
            return f"{label!r} is not what it was; damaged: {sorted(map(str, damaged))}"
    return REPAIRED


def repair_more(project: Path, sound: dict[str, str]) -> str:
    """Repair a store with several damages; return what is wrong afterwards, or ``REPAIRED``."""
    before, variables = points(project, salvage=True), {"HOME": str(project.parent)}
    try:
        done = repair_store(project / NAME, variables)
    except (NotAStore, UnknownFormat):
        # It may be a later version's. A person who knows that it is not deletes FORMAT.
        (project / NAME / "FORMAT").unlink(missing_ok=True)
        try:
            done = repair_store(project / NAME, variables)
        except NotAStore:
            if any((project / NAME / "packs").iterdir()):
                raise
            return REPAIRED  # nothing is left that says which store it was
    if done.report is None or not done.report.ok:
        return f"verify still finds {done.report and done.report.problems[:3]}"
    after, damaged = points(project), {one.label for one in done.damaged}
    for label, expected in sound.items():
        named = label in damaged or (label not in after and (done.lost_events or done.may_be_lost))
        if after.get(label) != expected and (before.get(label) == expected or not named):
            return f"{label!r} is not what it was; damaged: {sorted(map(str, damaged))}"
    if again := repair_store(project / NAME, variables).steps:
        return f"a second repair finds {again[:2]}"
    with mulligan.open(project, create=False) as store:
        for session in store.sessions():
            session.checkpoints()
            list(session.events())
    return REPAIRED


def run(
    rounds: int,
    seed: int,
    only: str | None = None,
    journal_bytes: int = 0,
    damages: int = 1,
) -> list[str]:
    """Damage a store this many times; return the violations."""
    rng, counts, violations = random.Random(seed), Counter[tuple[str, str]](), []
    with tempfile.TemporaryDirectory(prefix="mulligan-bitrot-") as top:
        project, out = Path(top) / "project", Path(top) / "out"
        store, sound = project / NAME, Path(top) / "sound"
        # In a child: a process that has LMDB open must not fork others that use it.
        _built(in_child(lambda: str(build(project, journal_bytes)), out))
        shutil.copytree(store, sound)
        shutil.copytree(project / "files", Path(top) / "files")
        before = in_child(lambda: content(project), out)
        intact = json.loads(in_child(lambda: json.dumps(points(project)), out))
        for _ in range(rounds):
            shutil.rmtree(store)
            shutil.copytree(sound, store)
            shutil.rmtree(project / "files")
            shutil.copytree(Path(top) / "files", project / "files")
            if damages == 1:
                file = _chosen(store, rng, only)
                name, done = file.relative_to(store), damage(file, rng)
                is_journal = name.parts[0] == "journal"
                mend = partial(repair, project, intact, is_journal=is_journal)
            else:
                name, done = store.relative_to(project), _damage_many(store, rng, only, damages)
                mend = partial(repair_more, project, intact)
            outcome = in_child(lambda: check(project, before), out)
            counts[name.name, outcome] += 1
            for ended, allowed in ((outcome, (FOUND, SAME)), (in_child(mend, out), (REPAIRED,))):
                if ended not in allowed:
                    violations.append(f"{name}, {done}: {ended}")
                    print(f"VIOLATION: {violations[-1]}", flush=True)
    shown = {f"{name}: {outcome}": count for (name, outcome), count in sorted(counts.items())}
    print(f"{rounds} damages, {len(violations)} violations: {json.dumps(shown, indent=1)}")
    return violations


def _chosen(store: Path, rng: random.Random, only: str | None) -> Path:
    """Return a file to damage: most of what can be lost is in the packs and the journal."""
    files = [file for file in targets(store) if only is None or only in str(file)]
    large = [file for file in files if file.suffix == ".pack" or file.name == DATA] or files
    return rng.choice(large if rng.random() < 0.8 else files)


def _damage_many(store: Path, rng: random.Random, only: str | None, most: int) -> str:
    done = []
    for _ in range(rng.randint(2, most)):
        # Nothing is left to damage there, or nothing that leads to the list of tables.
        with suppress(LookupError, ValueError, OverflowError, OSError, *UNREADABLE):
            file = _chosen(store, rng, only)
            done.append(f"{file.name}: {damage_more(file, rng)}")
    return "; ".join(done)


def _built(outcome: str) -> None:
    if outcome.startswith((ERROR, "DIED")):
        raise RuntimeError(outcome)


def main(arguments: Sequence[str] | None = None) -> int:
    """Damage a store; exit 1 if verify missed something or died."""
    parser = argparse.ArgumentParser(prog="python -m mulligan.testing.bitrot", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", help="damage only files whose path contains this")
    parser.add_argument("--journal", type=int, default=0, help="MiB that the journal has")
    parser.add_argument("--damages", type=int, default=1, help="up to this many in each round")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    found = run(options.rounds, seed, options.only, options.journal << 20, options.damages)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
