"""Files that other programs write to all the time: in every checkpoint, at a bounded cost."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from mulligan import Session
from tests.neighbours import neighbour

LOG = """
    import sys, time
    number = 0
    with open(sys.argv[1], "a", buffering=1) as log:
        log.write("0\\n" * int(sys.argv[2]))
        print("ready", flush=True)
        while True:
            number += 1
            log.write(f"{number}\\n")
            time.sleep(0.0001)
"""

DATABASE = """
    import os, random, sqlite3, sys
    database = sqlite3.connect(sys.argv[1])
    database.execute("pragma synchronous = off")
    print("ready", flush=True)
    while True:
        with database:
            change = os.urandom(4000), random.randrange(1, int(sys.argv[2]))
            database.execute("update t set b = ? where id = ?", change)
"""


@pytest.mark.parametrize("start", [10, 1_000_000], ids=["small", "large"])
@pytest.mark.parametrize("watch", [False, True], ids=["scan", "watch"])
def test_a_growing_log_is_in_every_checkpoint_as_a_part_that_was_there(
    session: Session, work: Path, start: int, watch: bool
) -> None:
    if watch:
        session.internal.watch()
    with neighbour(LOG, work / "log", start):
        made = [session.checkpoint() for _ in range(12)]
    whole, known = (work / "log").read_bytes(), 0
    for checkpoint in made:
        assert checkpoint.coverage is not None
        assert (checkpoint.coverage.left_out, checkpoint.coverage.changing) == ([], [])
        found = session.files.read(checkpoint, "log")
        assert len(found) >= max(known, 2 * start)
        assert whole.startswith(found)
        known = len(found)


def test_a_database_under_write_is_in_every_checkpoint_and_stored_once_for_each(
    session: Session, work: Path, tmp_path: Path
) -> None:
    rows, count = 5000, 6
    with sqlite3.connect(work / "app.db") as database:
        database.execute("create table t (id integer primary key, b blob)")
        blobs = ((os.urandom(4000),) for _ in range(rows))
        database.executemany("insert into t (b) values (?)", blobs)
    database.close()
    size = (work / "app.db").stat().st_size
    with neighbour(DATABASE, work / "app.db", rows):
        for _ in range(count):
            made = session.checkpoint()
            assert made.coverage is not None
            assert [left.path for left in made.coverage.left_out if left.path == "app.db"] == []
            assert len(session.files.read(made, "app.db")) == size
    packs = (tmp_path / "store").rglob("packs/*")
    stored = sum(file.stat().st_blocks * 512 for file in packs)
    assert stored < (count + 1) * size, "what readings that did not hold left behind"
    made = session.checkpoint()
    assert made.coverage is not None
    assert made.coverage.changing == []
    assert session.files.read(made, "app.db") == (work / "app.db").read_bytes()
