"""Makes the golden store of the format this version writes, and what must be found in it.

``python tests/compat/make_golden.py`` writes ``format-N/store.tar.gz`` and ``expected.json``.
A golden store that has been released is never made again, so ``--force`` is needed to do it.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import random
import socket
import sys
import tarfile
import tempfile
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import mulligan
from mulligan import Session
from mulligan.codec import FORMAT_VERSION
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store

HERE = Path(__file__).parent

EVERY_TYPE = {
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "negative": -1,
    "63 bits": 2**63 - 1,
    "64 bits": 2**64 - 1,
    "65 bits": 2**64,
    "huge": -(10**40),
    "float": 0.1,
    "minus zero": -0.0,
    "infinity": float("inf"),
    "text": "grüße, 走る, 🎲",
    "empty": "",
    "bytes": bytes(range(256)),
    "naive": datetime(2026, 2, 3, 4, 5, 6, 789),
    "utc": datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC),
    "offset": datetime(1999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    "nested": {"list": [[], [[1]], {}], "": {"a/b": {"~": "odd keys"}}},
    "wide": {f"key {n}": n for n in range(200)},
    "long": [f"item {n}" for n in range(4_200)],
    "long text": "the quick brown fox " * 2_000,
    "long bytes": random.Random(1).randbytes(20_000),
}


def build(place: Path) -> None:
    """Fill a store with one of everything the format has."""
    clock = FakeClock()
    with open_store(place, clock=clock) as store:
        run = store.session("run")
        _conversation(run, clock)
        run.state.set("types", EVERY_TYPE)
        run.checkpoint("routine", note="every type", label="types")
        clock.advance(0.123456)
        _edits(run)
        run.checkpoint("pre_operation", label="edited", note="n" * 5_000)
        clock.advance(60)
        run.restore("types")
        run.restore("edited", only=["agents", "memory/short_term"])
        run.undo()
        run.redo()
        run.checkpoint("my own kind", label="walked")
        clock.advance(3600)
        _forks(run)
        agent = store.agent("coder/ä", session="run-1", ttl=60)
        agent.state.set("by", "a leased agent")
        agent.checkpoint("recovery")
        agent.internal.release()
        taken = store.agent("coder/ä", session="run-1", ttl=60)
        taken.state.set("by", "its successor")


def _conversation(run: Session, clock: FakeClock) -> None:
    """Enough events for a keyframe."""
    for number in range(560):
        clock.advance(0.25)
        run.state.append("conversation", {"role": "user", "content": f"message {number}"})
        if number % 200 == 7:
            run.checkpoint(label=f"message {number}")


def _edits(run: Session) -> None:
    run.internal.state.put("agents", {"coder": {"state": "idle"}, "tester": {"state": "busy"}})
    run.internal.state.put("agents", {"coder": {"state": "busy", "on": [1, 2]}})
    with run.batch():
        run.state.set("memory/short_term", ["a"])
        run.state.extend("memory/short_term", ["b", "c"])
        run.state.set("types/long/7", "replaced")
        run.state.delete("types/wide/key 7")
        run.state.delete("conversation/0")


def _forks(run: Session) -> None:
    branch = run.fork("types", "branch")
    branch.state.set("types/text", "on the branch")
    branch.checkpoint(label="on the branch")
    twig = branch.fork(branch.head)
    twig.state.append("conversation", "x" * 9_000)


# --- what must be found ------------------------------------------------------------------------


def jsonable(value: Any) -> Any:
    """Return a plain value as JSON can hold it, every type apart."""
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [jsonable(item) for item in value]
    if value is None or isinstance(value, str | bool):
        return value
    return {"$" + type(value).__name__: value.hex() if isinstance(value, bytes) else repr(value)}


def shortened(value: Any, depth: int = 0) -> Any:
    """Return a JSON value with the long parts of its parts as hashes."""
    if isinstance(value, dict) and depth < 2:
        return {key: shortened(item, depth + 1) for key, item in value.items()}
    text = json.dumps(value, sort_keys=True)
    return value if len(text) < 200 else hashlib.blake2b(text.encode()).hexdigest()[:32]


def describe(place: Path) -> dict[str, Any]:
    """Return everything that a store shows."""
    with mulligan.open(place, create=False) as store:
        return {session.name: _session(session) for session in store.sessions()}


def _session(session: Session) -> dict[str, Any]:
    checkpoints = session.checkpoints()
    points = [2, 100, 511, 512, 513, *(made.seq for made in checkpoints), session.head.seq]
    points = sorted({seq for seq in points if seq <= session.head.seq})
    parent = session.parent
    return {
        "created": session.created.isoformat(),
        "parent": parent and [parent.session, parent.seq],
        "events": [_event(event) for event in session.events(since=parent)],
        "checkpoints": [_checkpoint(made) for made in checkpoints],
        "digests": {str(seq): session.internal.state_digest(seq) for seq in points},
        "state": shortened(jsonable(session.state.get(""))),
    }


def _event(event: mulligan.Event) -> list[Any]:
    moment = event.time.isoformat()
    return [event.seq, event.kind, event.actor, event.epoch, moment, event.hash.hex()[:24]]


def _checkpoint(made: mulligan.Checkpoint) -> list[Any]:
    return [made.seq, made.id, made.kind, made.label, made.note, made.parent, made.format]


# --- writing it down -----------------------------------------------------------------------------


def packed(place: Path) -> bytes:
    """Return the files of a store as an archive that says nothing about who made it."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for file in sorted((place / ".mulligan").rglob("*")):
            if file.name == "lock.mdb":
                continue
            entry = archive.gettarinfo(str(file), str(file.relative_to(place)))
            entry.uid = entry.gid = entry.mtime = 0
            entry.uname = entry.gname = ""
            with file.open("rb") if file.is_file() else io.BytesIO() as content:
                archive.addfile(entry, content)
    return buffer.getvalue()


def main() -> int:
    """Make the golden store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--force", action="store_true", help="replace the one that is there")
    target = HERE / f"format-{FORMAT_VERSION}"
    if (target / "expected.json").exists() and not parser.parse_args().force:
        print(f"{target} is there already; a released golden store is never made again")
        return 1
    # A golden store tells nothing about the machine it was made on.
    os.environ.clear()
    os.environ["LANG"] = "C.UTF-8"
    socket.gethostname = lambda: "golden"
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        build(place)
        expected = describe(place)
        archive = packed(place)
    target.mkdir(exist_ok=True)
    (target / "store.tar.gz").write_bytes(archive)
    (target / "expected.json").write_text(compact(expected))
    print(f"wrote {target}: {len(archive)} bytes")
    return 0


def compact(expected: dict[str, Any]) -> str:
    """Return JSON with an event or checkpoint in a line."""
    text = json.dumps(expected, ensure_ascii=False, separators=(",", ":"))
    return text.replace("],[", "],\n[") + "\n"


if __name__ == "__main__":
    sys.exit(main())
