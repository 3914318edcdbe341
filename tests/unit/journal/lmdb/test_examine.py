"""A journal that others write to while it is checked is not called damaged."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from mulligan.journal.lmdb.examine import examine
from mulligan.journal.lmdb.lockfile import LockFile
from mulligan.journal.lmdb.tables import LmdbTables

WRITER = """
    import os, sys
    from pathlib import Path
    from mulligan.journal.lmdb.tables import LmdbTables
    sys.stdin.readline()
    tables = LmdbTables(Path(sys.argv[1]))
    for _ in range(10):
        with tables.write() as writer:
            for number in range(200):
                writer.put("objects", b"%032d" % number, os.urandom(20))
    print("written", flush=True)
    sys.stdin.readline()
"""


def test_a_writer_that_opens_it_during_the_check_is_no_damage(tmp_path: Path) -> None:
    tables = LmdbTables(tmp_path)
    with tables.write() as writer:
        writer.add_all("objects", ((b"%032d" % number, bytes(20)) for number in range(2000)))
    tables.close()
    (tmp_path / "clean").unlink()
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path)]
    lock = LockFile(tmp_path)
    looks = 0

    def is_shared() -> bool:
        """Tell what is true, and have the pages overwritten that are about to be looked at."""
        nonlocal looks
        looks += 1
        was_shared = lock.is_used_elsewhere()
        if not was_shared:
            process.stdin.write("go\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            assert process.stdout.readline() == "written\n"  # type: ignore[union-attr]
        return was_shared

    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        found = examine(tmp_path, is_shared=is_shared, may_be_new=False)
        process.kill()
    lock.release()
    assert (found.damage, looks) == ({}, 2)
