"""Full disks, read-only places, damaged journals, frozen and forked writers: nothing is lost."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

import mulligan
from mulligan import Session
from mulligan.errors import (
    DamagedJournal,
    DiskFull,
    LeaseHeld,
    StoreClosed,
    StoreOpenedTwice,
)
from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.journal.lmdb.tables import LmdbTables
from mulligan.testing.failpoints import fail_at
from mulligan.testing.stores import open_store
from tests.crash.damage import GOOD, campaign
from tests.disks import disk_of, mount
from tests.scale import SCALE

LARGE = "x" * 10_000


def script(code: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run some Python in a process of its own."""
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, **options
    )


# --- full disk -------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for two megabytes."""
    with disk_of(2, tmp_path / "disk") as place:
        yield place


def fill(session: Session, value: Callable[[], object]) -> list[object]:
    """Append until the disk is full, and return what was acknowledged."""
    kept: list[object] = []
    with pytest.raises(DiskFull, match="no space left"):  # noqa: PT012
        while len(kept) < 10_000:
            made = value()
            session.state.append("values", made)
            kept.append(made)
    return kept


VALUES: dict[str, Callable[[random.Random], bytes]] = {
    "the journal": lambda rng: rng.randbytes(2_000),
    "a pack": lambda rng: rng.randbytes(30_000),
    "a pack at once": lambda rng: rng.randbytes(1_500_000),
}


@pytest.mark.parametrize("what", VALUES)
def test_a_full_disk_loses_nothing_and_is_got_over(small_disk: Path, what: str) -> None:
    rng = random.Random(1)
    with mulligan.open(small_disk) as store:
        session = store.session("run")
        checkpoint = session.checkpoint(label="early")
        kept = fill(session, lambda: VALUES[what](rng))
        assert kept or what == "a pack at once"
        assert session.state.get("values", []) == kept
        while not full(session):
            pass
        count = session.state.get("count", 0)
        assert session.state.at("early").get() == {}
        mount("-o", "remount,size=40m", str(small_disk))
        session.state.append("values", "after")
        session.state.set("large", LARGE)
        session.checkpoint()
        assert store.verify().ok
    with mulligan.open(small_disk) as store:
        session = store.session("run")
        assert session.state.get("values") == [*kept, "after"]
        assert session.state.get("count", 0) == count
        assert session.point("early").checkpoint == checkpoint.id
        assert store.verify().ok


def full(session: Session) -> bool:
    """Write a little more, and say whether that was refused and nothing happened."""
    count = session.state.get("count", 0)
    try:
        session.state.set("count", count + 1)
    except DiskFull:
        assert session.state.get("count", 0) == count
        return True
    try:
        session.state.append("noise", os.urandom(2_000))
    except DiskFull:
        return True
    return False


def test_a_store_cannot_be_made_on_a_full_disk(small_disk: Path) -> None:
    fill_up(small_disk)
    with pytest.raises(DiskFull):
        mulligan.open(small_disk)
    (small_disk / "noise").unlink()
    with mulligan.open(small_disk) as store:
        store.session("run").state.set("a", 1)
        assert store.verify().ok


def fill_up(disk: Path) -> None:
    free = os.statvfs(disk)
    (disk / "noise").write_bytes(bytes(free.f_bavail * free.f_frsize))


class Armed:
    """A hook that can be put in place while the store is open."""

    def __init__(self) -> None:
        self.hook: FailpointHook = ignore

    def __call__(self, point: Failpoint) -> None:
        self.hook(point)


WRITE_POINTS = [
    point
    for point in Failpoint
    if point.name.startswith(("PACK_", "JOURNAL_")) and point is not Failpoint.PACK_TAIL_CUT
]
WHERE_BYTES_ARE_WRITTEN = (Failpoint.PACK_CREATED, Failpoint.PACK_FRAME_HALF_WRITTEN)
"""Elsewhere no system call of ours can fail, so the error may arrive as it was injected."""


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("point", WRITE_POINTS)
def test_no_space_at_any_point_of_a_write(tmp_path: Path, point: Failpoint, code: int) -> None:
    armed = Armed()
    with open_store(tmp_path, failpoint=armed) as store:
        session = store.session("run")
        session.state.set("kept", 1)
        armed.hook = fail_at(point, OSError(code, os.strerror(code)))
        with pytest.raises((DiskFull, OSError)) as caught:
            session.state.set("large", LARGE)
        assert caught.type is DiskFull or point not in WHERE_BYTES_ARE_WRITTEN
        happened = point is Failpoint.JOURNAL_COMMITTED
        assert session.state.get("") == ({"kept": 1, "large": LARGE} if happened else {"kept": 1})
        session.state.set("large", LARGE * 2)
        assert session.state.get("") == {"kept": 1, "large": LARGE * 2}
        assert store.verify().ok
    with mulligan.open(tmp_path) as store:
        assert store.session("run").state.get("") == {"kept": 1, "large": LARGE * 2}
        assert store.verify().ok


def test_no_space_while_a_torn_tail_is_cut(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        store.session("run").state.set("large", LARGE)
    with (tmp_path / ".mulligan" / "packs" / "00000001.pack").open("ab") as file:
        file.write(b"torn")
    hook = fail_at(Failpoint.PACK_TAIL_CUT, OSError(errno.ENOSPC, "full"))
    with open_store(tmp_path, failpoint=hook) as store:
        session = store.session("run")
        with pytest.raises(DiskFull):
            session.state.set("more", LARGE * 2)
        session.state.set("more", LARGE * 3)
        assert session.state.get("") == {"large": LARGE, "more": LARGE * 3}
        assert store.verify().ok


@pytest.mark.parametrize("point", WRITE_POINTS)
def test_an_interrupt_at_any_point_leaves_a_store_that_goes_on(
    tmp_path: Path, point: Failpoint
) -> None:
    armed = Armed()
    with open_store(tmp_path, failpoint=armed) as store:
        session = store.session("run")
        armed.hook = fail_at(point, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            session.state.set("large", LARGE)
        session.state.set("after", 1)
        assert session.state.get("after") == 1
        assert store.verify().ok


# --- read-only -------------------------------------------------------------------------------

READ_ONLY = """
    import os, sys
    import mulligan
    from mulligan.errors import ReadOnlyStore

    place = sys.argv[1]
    # Whatever is imported late is imported now: nobody may not be allowed to read it.
    warm = mulligan.open("memory:").session("warm")
    warm.fork(warm.restore(warm.checkpoint()).safety)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    store = mulligan.open(place)
    session = store.session("run")
    assert session.state.get("") == {"a": 1, "large": "x" * 10_000}, session.state.get("")
    assert session.state.at("here").get() == {"a": 1}
    assert [event.seq for event in session.events()] == [1, 2, 3, 4]
    assert store.verify().ok
    refused = 0
    for attempt in (
        lambda: session.state.set("b", 1),
        lambda: session.state.set("b", "y" * 10_000),
        session.checkpoint,
        lambda: session.restore(2),
        lambda: session.fork(2),
        lambda: store.session("new"),
        lambda: store.agent("a", session="run"),
        lambda: mulligan.open(os.path.join(place, "inside")),
    ):
        try:
            attempt()
        except ReadOnlyStore:
            refused += 1
    print(refused)
    store.close()
"""


def build_for_reading(place: Path) -> None:
    with mulligan.open(place) as store:
        session = store.session("run")
        session.state.set("a", 1)
        session.checkpoint(label="here")
        session.state.set("large", LARGE)


def test_a_directory_that_cannot_be_written_is_read() -> None:
    # Not under tmp_path, which nobody else may enter.
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        build_for_reading(place)
        (place / ".mulligan" / "journal" / "lock.mdb").unlink()
        for entry in (place, *place.rglob("*")):
            entry.chmod(0o555 if entry.is_dir() else 0o444)
        done = script(READ_ONLY, name, cwd="/")
        for entry in (place, *place.rglob("*")):
            entry.chmod(0o755)
    assert (done.stdout.strip(), done.stderr) == ("8", "")


def test_a_read_only_disk_is_read(small_disk: Path) -> None:
    build_for_reading(small_disk)
    for entry in (small_disk, *small_disk.rglob("*")):
        entry.chmod(0o777 if entry.is_dir() else 0o666)
    (small_disk.parent).chmod(0o755)
    mount("-o", "remount,ro", str(small_disk))
    done = script(READ_ONLY.replace("os.geteuid() == 0", "False"), str(small_disk))
    assert (done.stdout.strip(), done.stderr) == ("8", "")


# --- opened twice ----------------------------------------------------------------------------


def test_two_handles_of_one_process_share_the_store(tmp_path: Path) -> None:
    one, two = mulligan.open(tmp_path), mulligan.open(tmp_path)
    one.session("run").state.set("large", LARGE)
    assert two.session("run").state.get("large") == LARGE
    two.session("run").state.set("more", LARGE * 2)
    one.close()
    one.close()
    with pytest.raises(StoreClosed):
        one.session("run")
    assert two.session("run").state.get("more") == LARGE * 2
    two.session("run").state.set("last", 1)
    two.close()
    with mulligan.open(tmp_path) as store:
        assert store.session("run").state.get("last") == 1
        assert store.verify().ok


def test_a_journal_opened_by_something_else_is_refused(tmp_path: Path) -> None:
    mulligan.open(tmp_path).close()
    with (
        lmdb.open(str(tmp_path / ".mulligan" / "journal"), max_dbs=32),
        pytest.raises(StoreOpenedTwice),
    ):
        mulligan.open(tmp_path)
    mulligan.open(tmp_path).close()


def test_a_store_open_for_reading_is_not_opened_for_writing_beside(tmp_path: Path) -> None:
    mulligan.open(tmp_path).close()
    journal = tmp_path / ".mulligan" / "journal"
    reading = LmdbTables(journal, read_only=True)
    with pytest.raises(StoreOpenedTwice):
        mulligan.open(tmp_path)
    reading.close()
    with mulligan.open(tmp_path) as store:
        store.session("run").state.set("a", 1)


# --- damaged journal -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with some of everything."""
    place = tmp_path_factory.mktemp("sound")
    with mulligan.open(place) as store:
        for name in ("run", "run-1"):
            session = store.session(name)
            for number in range(24):
                session.state.append("conversation", f"message {number} " * 40)
                if number % 6 == 0:
                    session.checkpoint(label=f"{name} {number}")
            session.state.set("large", LARGE)
            session.restore(f"{name} 12")
            session.fork(f"{name} 18").state.set("forked", True)
    return place


def examined(sound: Path, work: Path, cases: list[list[Any]]) -> list[tuple[list[Any], str]]:
    command = [sys.executable, str(Path(__file__).with_name("examine.py")), str(sound), str(work)]
    done = subprocess.run(
        command, input=json.dumps(cases), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(cases)
    return [(case, outcome) for case, outcome in found]


def data_file(sound: Path) -> bytes:
    return (sound / ".mulligan" / "journal" / "data.mdb").read_bytes()


def test_a_journal_cut_anywhere_is_refused_and_kills_nobody(sound: Path, tmp_path: Path) -> None:
    size = len(data_file(sound))
    lengths = {*range(20), *range(0, size, 4_096), *range(4_000, size, 9_973), size - 1}
    cases = [["cut", length] for length in sorted(lengths) if length < size]
    cases.append(["cut", size])
    *cut, (_, whole) = examined(sound, tmp_path / "copy", cases)
    assert whole == "right"
    counts = Counter(outcome for _, outcome in cut)
    # What is cut off at the end may have been free pages alone.
    assert set(counts) <= {"refused", "right"}, cut
    assert counts["right"] < len(cut) / 5


NEWEST = range(144, 152)
"""Where either of the two first pages says which commit it is of."""


def flips(data: bytes) -> list[list[Any]]:
    """Return flips in every page: in its header, its pointers, and all over its content."""
    rng = random.Random(1)
    cases: list[list[Any]] = []
    for page in range(0, len(data), 4_096):
        offsets = [0, 10, 12, 14, 16, rng.randrange(17, 200)]
        used = [at for at in range(page, min(page + 4_096, len(data))) if data[at]]
        offsets += [at - page for at in rng.sample(used, min(3, len(used)))]
        cases += [["flip", page + at, rng.randrange(8)] for at in offsets if page + at < len(data)]
    return [case for case in cases if case[1] % 4_096 not in NEWEST or case[1] >= 2 * 4_096]


@pytest.mark.timeout(900)
def test_a_flipped_bit_in_the_journal_never_shows_wrong_values(sound: Path, tmp_path: Path) -> None:
    step = 2 if SCALE == 1 else 1
    cases = flips(data_file(sound))[random.SystemRandom().randrange(step) :: step]
    found = examined(sound, tmp_path / "copy", cases)
    counts = Counter(outcome for _, outcome in found)
    assert counts["refused"] > 20 / step
    assert [case for case, outcome in found if outcome == "wrong"] == []
    assert [case for case, outcome in found if outcome == "crashed"] == []
    # Entries that an index has lost do not show; verify has to.
    assert counts["incomplete"] < 10
    assert [case for case, outcome in found if outcome.startswith("SIG")] == []


@pytest.mark.timeout(900)
def test_no_damage_to_the_journal_ends_a_command_otherwise_than_in_an_error(tmp_path: Path) -> None:
    """Pages zeroed, stale, misplaced, noisy, cut: a part of what ``make crash`` does."""
    found = campaign(tmp_path, seed=7, kinds=24)
    counts = Counter(outcome for _, outcome in found)
    assert [(case, outcome) for case, outcome in found if outcome not in GOOD] == []
    assert counts["right"]
    assert counts["refused"]


def test_a_flipped_bit_in_the_number_of_a_commit_is_noticed(sound: Path, tmp_path: Path) -> None:
    cases = [["flip", page + at, 3] for page in (0, 4_096) for at in NEWEST]
    found = examined(sound, tmp_path / "copy", cases)
    assert [case for case, outcome in found if outcome == "wrong"] == []


def test_a_checkpoint_that_the_index_has_lost_is_missed(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        session = store.session("run")
        for _ in range(3):
            session.checkpoint()
    with lmdb.open(str(tmp_path / ".mulligan" / "journal"), max_dbs=32) as env:
        table = env.open_db(b"checkpoints", create=False)
        with env.begin(write=True) as txn:
            key = [key for key, _ in txn.cursor(table)][1]
            txn.delete(key, db=table)
    with mulligan.open(tmp_path) as store, pytest.raises(DamagedJournal):
        store.session("run").checkpoints()


# --- a frozen writer -------------------------------------------------------------------------

FROZEN = """
    import sys
    import mulligan
    from mulligan.errors import StaleLease

    store = mulligan.open(sys.argv[1])
    session = store.agent("coder", session="run", ttl=3600)
    session.state.set("by", "the first")
    for attempt in (
        lambda: session.state.set("by", "the first again"),
        lambda: session.state.set("large", "x" * 10_000),
        session.checkpoint,
        lambda: session.restore(2),
    ):
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            attempt()
            print("written", flush=True)
        except StaleLease:
            print("refused", flush=True)
    store.close()
"""


def test_a_frozen_writer_that_wakes_after_it_was_replaced_cannot_write(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(FROZEN), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    os.kill(child.pid, signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    with mulligan.open(tmp_path) as store:
        with pytest.raises(LeaseHeld):
            store.agent("coder", session="run")
        session = store.agent("coder", session="run", steal=True)
        session.state.set("by", "the second")
        head, packs = session.head, sorted((tmp_path / ".mulligan" / "packs").iterdir())
        os.kill(child.pid, signal.SIGCONT)
        answers = []
        for _ in range(4):
            child.stdin.write("go\n")
            child.stdin.flush()
            answers.append(child.stdout.readline().strip())
            child.stdout.readline()
        assert child.wait(60) == 0
        assert answers == ["refused"] * 4
        assert session.head == head
        assert session.state.get("") == {"by": "the second"}
        assert len(packs) <= 2
        assert [event.epoch for event in session.events()] == [0, 1, 2]
        assert store.verify().ok


# --- fork ------------------------------------------------------------------------------------

FORKED = """
    import os, sys
    import mulligan

    place = sys.argv[1]
    store, second = mulligan.open(place), mulligan.open(place)
    session = store.session("run")
    session.state.set("before", "x" * 10_000)
    pid = os.fork()
    me = "child" if pid == 0 else "parent"
    for number in range(60):
        session.state.append(me, [number, me * (number * 100)])
        if number % 20 == 0:
            session.checkpoint(label=f"{me} {number}")
            assert second.session("run").state.get(me)[number][0] == number
    assert session.state.get("before") == "x" * 10_000
    if pid == 0:
        if len(sys.argv) > 2:
            store.close()
            second.close()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert status == 0, status
    for name in ("child", "parent"):
        assert [item[0] for item in session.state.get(name)] == list(range(60))
        assert session.state.get(name)[59][1] == name * 5_900
    session.state.set("after", "y" * 10_000)
    assert [event.seq for event in session.events()] == list(range(1, session.head.seq + 1))
    assert len(session.checkpoints()) == 6
    assert store.verify().ok, store.verify().problems
    second.close()
    store.close()
    print("fine")
"""


@pytest.mark.parametrize("closing", [True, False])
def test_parent_and_child_both_go_on_with_a_handle_after_a_fork(
    tmp_path: Path, closing: bool
) -> None:
    done = script(FORKED, str(tmp_path), *(["close"] if closing else []))
    assert (done.stdout, done.stderr) == ("fine\n", "")
    with mulligan.open(tmp_path) as store:
        assert store.session("run").state.get("after") == "y" * 10_000
        assert store.verify().ok
