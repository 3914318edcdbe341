"""A journal is checked page by page when it is not as its last writer left it, and only then."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import mulligan
from mulligan.errors import DamagedJournal
from mulligan.journal.lmdb import clean_close, layout, shared_check
from mulligan.journal.lmdb.examine import examine
from mulligan.journal.lmdb.tables import LmdbTables


def is_doubted(place: Path) -> bool:
    """Whether opening a journal checks its pages; nothing is written down about it."""
    tables = LmdbTables(place / ".mulligan/journal", read_only=True)
    try:
        return tables.is_unproven
    finally:
        tables.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with mulligan.open(tmp_path) as store:
        store.session("run").state.set("a", 1)
    return tmp_path


def test_a_journal_that_was_closed_is_not_doubted(place: Path) -> None:
    assert not is_doubted(place)
    with mulligan.open(place, read_only=True) as store:
        assert store.session("run", create=False).state.get("a") == 1
    assert not is_doubted(place)


CHILD = """
    import os, signal, sys
    import mulligan
    store = mulligan.open(sys.argv[1])
    store.session("run").state.set("a", 2)
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[2] == "wait":
        print("ready", flush=True)
        sys.stdin.readline()
"""


def child(place: Path, how: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(CHILD), str(place), how]


def test_a_journal_whose_writer_was_killed_is_doubted_once(place: Path) -> None:
    assert subprocess.run(child(place, "kill"), check=False).returncode == -signal.SIGKILL
    assert is_doubted(place)
    with mulligan.open(place) as store:
        assert store.session("run").state.get("a") == 2
    assert not is_doubted(place)


def test_a_journal_that_was_written_over_is_doubted_though_its_time_is_the_same(
    place: Path,
) -> None:
    """As copying programs leave it, which set the times of what they copy."""
    file = place / ".mulligan/journal/data.mdb"
    before = file.stat()
    while file.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of a filesystem is coarse
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert is_doubted(place)


def test_a_look_is_enough_to_have_it_checked(place: Path) -> None:
    subprocess.run(child(place, "kill"), check=False)
    mulligan.open(place, read_only=True).close()
    assert not is_doubted(place)


def test_a_program_that_ends_without_closing_has_left_it_clean(place: Path) -> None:
    subprocess.run(child(place, "leave"), check=True)
    assert not is_doubted(place)


def test_what_another_process_has_open_is_not_checked_again(place: Path) -> None:
    with subprocess.Popen(
        child(place, "wait"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert not is_doubted(place)
        process.kill()
    assert is_doubted(place)


@pytest.mark.parametrize("data", [b"", b"1 2 3 4 0000", b"\xff" * 300, b"a b c d\n"])
def test_a_mark_that_cannot_be_read_counts_for_nothing(place: Path, data: bytes) -> None:
    (place / ".mulligan/journal/clean").write_bytes(data)
    assert is_doubted(place)
    mulligan.open(place).close()
    assert not is_doubted(place)


def test_a_file_that_was_written_to_by_others_is_not_marked_clean(place: Path) -> None:
    """Closing says what this process wrote, not what something else made of it meanwhile."""
    data = place / ".mulligan/journal/data.mdb"
    with mulligan.open(place) as store:
        store.session("run").state.set("a", 3)
        with data.open("r+b") as file:
            file.seek(0, os.SEEK_END)
            file.write(bytes(4_096))
    assert is_doubted(place)


def test_a_damaged_page_is_an_error_before_lmdb_sees_it(place: Path) -> None:
    data = place / ".mulligan/journal/data.mdb"
    data.write_bytes(data.read_bytes()[: 2 * 4_096] + bytes(data.stat().st_size - 2 * 4_096))
    for _ in range(2):
        with pytest.raises(DamagedJournal, match="damaged") as caught:
            mulligan.open(place)
        assert "verify" in caught.value.hint
    with mulligan.open(place, salvage=True) as store:
        report = store.verify()
    assert [problem.where for problem in report.problems] == ["data.mdb", "free pages"]
    assert report.packs == 0


def lose_a_page(data: Path, page: int) -> None:
    """Zero a page as a failing disk does: size and modification time stay."""
    before = data.stat()
    with data.open("r+b") as file:
        file.seek(page * 4_096)
        file.write(bytes(4_096))
    os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))


READER = """
    import sys
    import mulligan
    from mulligan.errors import DamagedJournal
    try:
        with mulligan.open(sys.argv[1], read_only=True) as store:
            session = store.session("run", create=False)
            print(len(list(session.events())), len(session.state.get("conversation")))
    except DamagedJournal as error:
        print(error)
"""


def test_pages_that_the_disk_lost_without_a_trace_are_an_error_before_lmdb_sees_them(
    place: Path,
) -> None:
    with mulligan.open(place) as store:
        for number in range(60):
            store.session("run").state.append("conversation", f"message {number} " * 40)
    journal = place / ".mulligan/journal"
    sound = (journal / "data.mdb").read_bytes()
    ends = set()
    for page in range(2, len(sound) // 4_096, 2):
        lose_a_page(journal / "data.mdb", page)
        command = [sys.executable, "-c", textwrap.dedent(READER), str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (page, done)
        ends.add(done.stdout[:22].strip())
        (journal / "clean").unlink(missing_ok=True)
        (journal / "data.mdb").write_bytes(sound)
        mulligan.open(place, read_only=True).close()
    assert ends == {"62 60", "The journal is damaged"}


def flip_silently(journal: Path, at: int) -> None:
    """Flip a bit as a failing disk does: the mark still matches size and times of the file."""
    data, mark = journal / "data.mdb", clean_close.read(journal)
    assert mark is not None
    with data.open("r+b") as file:
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << at % 8]))
    clean_close.write(journal, clean_close.look(data), mark.commit, mark.digest)


SHORT = """
    import sys
    import mulligan
    from mulligan.errors import DamagedJournal
    try:
        mulligan.open(sys.argv[1], read_only=True).close()
    except DamagedJournal as error:
        print(error)
"""


def in_another_process(place: Path, script: str = READER) -> str:
    """Read a journal in a process of its own, which must not die; return what it prints."""
    command = [sys.executable, "-c", textwrap.dedent(script), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    return done.stdout


def grow(place: Path, size: int) -> None:
    """Let the journal become at least so many bytes large."""
    noise, journal = random.Random(size), place / ".mulligan/journal/data.mdb"
    with mulligan.open(place) as store:
        session = store.session("run")
        session.state.append("conversation", "first")
        while journal.stat().st_size < size:
            with session.batch():
                for number in range(100):
                    session.state.set(f"memory/{number % 50}", noise.randbytes(1_000).hex())


def test_bits_lost_in_a_large_journal_are_an_error_before_lmdb_sees_them(place: Path) -> None:
    """Of more than 32 MiB, each in a process of its own: LMDB would end some of them."""
    grow(place, 33 << 20)
    journal = place / ".mulligan/journal"
    shutil.copytree(journal, place / "sound")
    with (journal / "data.mdb").open("rb") as file:
        commit = layout.commits(file.fileno())[0]
    # The first pages of two trees: their numbers and their bounds.
    for page, byte in ((commit.main.root, 0), (commit.main.root, 14), (commit.free.root, 12)):
        flip_silently(journal, page * 4_096 + byte)
        assert "The journal is damaged" in in_another_process(place, SHORT)
        shutil.rmtree(journal)
        shutil.copytree(place / "sound", journal)


def test_bits_lost_beside_a_process_that_has_it_open_are_an_error_too(place: Path) -> None:
    journal = place / ".mulligan/journal"
    grow(place, 200_000)
    with subprocess.Popen(
        child(place, "wait"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        sound = (journal / "data.mdb").read_bytes()
        assert len(sound) < shared_check.ALWAYS_BYTES
        for page in range(2, len(sound) // 4_096, 7):
            with (journal / "data.mdb").open("r+b") as file:
                file.seek(page * 4_096 + 10)
                file.write(b"\xff\xff\xff")
            said = in_another_process(place)
            with (journal / "data.mdb").open("r+b") as file:
                file.write(sound)
            # Pages of free space hold nothing.
            assert "The journal is damaged" in said or said.split()[1] == "1"
        assert in_another_process(place).split()[1] == "1"
        other.communicate("\n")


def test_a_large_journal_beside_others_is_checked_now_and_then(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = place / ".mulligan/journal"
    size = (journal / "data.mdb").stat().st_size
    monkeypatch.setattr(shared_check, "ALWAYS_BYTES", 0)
    assert shared_check.is_due(journal, size)
    for _ in range(2):  # beside a process that has it open
        found = examine(journal, is_shared=lambda: True, may_be_new=False)
        assert (found.damage, found.checked) == ({}, None)
    assert not shared_check.is_due(journal, size)
    lose_a_page(journal / "data.mdb", 2)
    assert examine(journal, is_shared=lambda: True, may_be_new=False).damage == {}
    for then in (-3600, 3600):  # long ago, or under a clock that was wrong
        seconds = time.time() + then
        os.utime(journal / "checked", (seconds, seconds))
        assert shared_check.is_due(journal, size)
    assert examine(journal, is_shared=lambda: True, may_be_new=False).damage


def test_a_large_journal_is_not_read_as_a_whole(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clean_close, "MAX_DIGESTED_BYTES", 4_096)
    with mulligan.open(place) as store:
        store.session("run").state.set("a", 2)
    mark = clean_close.read(place / ".mulligan/journal")
    assert mark is not None
    assert mark.digest == "-"
    assert not is_doubted(place)


# --- older copies ----------------------------------------------------------------------------


def test_a_journal_that_was_put_back_from_an_older_copy_is_noticed(place: Path) -> None:
    data = place / ".mulligan/journal/data.mdb"
    shutil.copy(data, place / "older")
    with mulligan.open(place) as store:
        for number in range(3):
            store.session("run").state.set("a", number)
    shutil.copy(place / "older", data)
    for _ in range(2):  # opening it does not silence it
        with mulligan.open(place) as store:
            (problem,) = store.verify().problems
        assert problem.where == "data.mdb"
        assert "older copy: it lacks the last 3 acknowledged commits" in problem.detail


def test_a_crash_is_not_taken_for_an_older_copy(place: Path) -> None:
    for _ in range(3):
        subprocess.run(child(place, "kill"), check=False)
        with mulligan.open(place, read_only=True) as store:
            report = store.verify()
        assert report.ok
        assert report.warnings == ()


def test_a_whole_journal_from_an_older_copy_is_suspected_by_the_packs(place: Path) -> None:
    """Without the mark, which was put back with it, only what the packs hold is left to tell."""
    journal, older = place / ".mulligan/journal", place.with_name("older")
    shutil.copytree(journal, older)
    with mulligan.open(place) as store:
        session = store.session("run", workspace=place)
        for number in range(4):
            (place / "file").write_text(str(number))
            session.checkpoint()
    shutil.rmtree(journal)
    shutil.copytree(older, journal)
    with mulligan.open(place, read_only=True) as store:
        report = store.verify()
    assert report.ok
    (warning,) = report.warnings
    assert "or more checkpoints that the journal does not know" in warning.detail


KILLED = """
    import os, signal, sys
    import mulligan
    from mulligan.failpoints import Failpoint
    from mulligan.testing.failpoints import kill_at
    from mulligan.testing.stores import open_store
    store = open_store(sys.argv[1], failpoint=kill_at(Failpoint.JOURNAL_BEFORE_COMMIT, 3))
    session = store.session("run", workspace=sys.argv[1])
    for number in range(9):
        session.state.set("large", str(number) * 9_000)
        session.checkpoint()
"""


def test_what_a_killed_writer_leaves_in_a_pack_is_no_reason_to_warn(place: Path) -> None:
    (place / "file").write_text("content")
    for number in range(2):
        (place / "file").write_text(f"content {number}")
        command = [sys.executable, "-c", textwrap.dedent(KILLED), str(place)]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        with mulligan.open(place, read_only=True) as store:
            report = store.verify()
        assert report.ok
        assert report.warnings == ()
        assert report.unreferenced_bytes


def test_the_highest_commit_outlives_lower_ones(tmp_path: Path) -> None:
    (tmp_path / clean_close.DATA).write_bytes(b"x")
    clean_close.write(tmp_path, clean_close.Look(1, 2, 3), 9)
    clean_close.write(tmp_path, clean_close.Look(1, 2, 3), 4)
    mark = clean_close.read(tmp_path)
    assert mark is not None
    assert (mark.size, mark.mtime, mark.ctime, mark.commit, mark.highest) == (1, 2, 3, 4, 9)
