"""An environment is opened anew under all threads after an error of the disk, and after a fork."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import mulligan
from mulligan.errors import DamagedJournal, DamageError, MulliganError, StoreOpenedTwice
from mulligan.journal.lmdb import environment, open_environments
from mulligan.journal.lmdb.environment import Environment, identity
from mulligan.journal.lmdb.open_environments import acquire, release
from mulligan.journal.lmdb.tables import LmdbTables
from mulligan.journal.lmdb.write_lock import find_write_lock_owner
from mulligan.store import engine_of
from tests.children import Tell, run_child


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[LmdbTables]:
    made = LmdbTables(tmp_path)
    with made.write() as writer:
        writer.put("meta", b"key", b"value")
    yield made
    made.close()


@pytest.fixture
def shared(tables: LmdbTables, tmp_path: Path) -> Iterator[Environment]:
    key = identity(tmp_path)
    found = acquire(key, tmp_path, read_only=False)
    yield found
    release(key, found)


def value(tables: LmdbTables) -> bytes | None:
    with tables.read() as reader:
        return reader.get("meta", b"key")


def test_an_attempt_that_failed_is_made_again_at_the_next_read(
    tables: LmdbTables, shared: Environment, tmp_path: Path
) -> None:
    """Nothing is made in the place of a file that has gone, and what was there is not refused."""
    file, away = tmp_path / "data.mdb", tmp_path / "away"
    shared.require_reopen()
    file.rename(away)
    for _ in range(2):
        with pytest.raises(DamagedJournal, match=r"no data\.mdb"):
            value(tables)
    assert not file.exists()
    away.rename(file)
    assert value(tables) == b"value"


def test_threads_that_wait_for_the_same_do_not_wait_for_each_other(
    tables: LmdbTables, shared: Environment
) -> None:
    inside = threading.Barrier(2, timeout=60)
    met: list[bytes | None] = []

    def read() -> None:
        with suppress(threading.BrokenBarrierError), tables.read() as reader:
            inside.wait()
            met.append(reader.get("meta", b"key"))

    threads = [threading.Thread(target=read) for _ in range(2)]
    with tables.read():
        shared.require_reopen()
        for thread in threads:
            thread.start()
        while shared._waiting < 2 and all(thread.is_alive() for thread in threads):
            pass
    for thread in threads:
        thread.join()
    assert met == [b"value"] * 2


def write_over(tables: LmdbTables) -> None:
    for _ in range(10):
        with tables.write() as writer:
            for number in range(2000):
                writer.put("objects", b"%032d" % number, b"new")


def write_in_fork(_: object, tables: LmdbTables) -> None:
    signal.alarm(120)  # rather than to hang
    with tables.write() as writer:
        writer.put("meta", b"key", b"forked")


def test_what_is_read_outlives_a_process_that_was_forked_off(tables: LmdbTables) -> None:
    """Forked inside of a transaction, it is refused; in any case it leaves the parent's alone."""
    with tables.write() as writer:
        writer.add_all("objects", ((b"%032d" % number, b"old") for number in range(2000)))

    def refused(_: object) -> None:
        with pytest.raises(StoreOpenedTwice, match="forked while its parent used the store"):
            write_over(tables)

    with tables.read() as reader:
        assert run_child(refused).finished
        writing = threading.Thread(target=write_over, args=(tables,))
        writing.start()
        writing.join()
        assert {value for _, value in reader.scan("objects", b"", None)} == {b"old"}


def test_a_process_that_is_forked_off_amid_the_reads_of_other_threads_can_write(
    tables: LmdbTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine, a thread inside of a transaction may not run for longer than that.
    monkeypatch.setattr(environment, "FORK_WAIT_SECONDS", 120.0)
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            value(tables)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        ends = [run_child(partial(write_in_fork, tables=tables)) for _ in range(5)]
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert all(end.finished for end in ends)
    assert value(tables) == b"forked"


@pytest.mark.parametrize("closes", [False, True])
def test_a_fork_waits_for_a_writer_that_reads_before_it_commits(
    tables: LmdbTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    """The read does not wait for the fork in turn, which would then happen amid the write.

    Nor does it if it closes another store, as a garbage collection may do there.
    """
    (tmp_path / "other").mkdir()
    other = LmdbTables(tmp_path / "other")
    is_writing, is_forking = threading.Event(), threading.Event()
    wait = Environment._wait_for

    def tell_and_wait(*args: Any) -> bool:
        is_forking.set()
        return wait(*args)

    def write() -> None:
        with tables.write() as writer:
            is_writing.set()
            is_forking.wait(60)
            if closes:
                other.close()
            writer.put("meta", b"copy", value(tables) or b"")

    monkeypatch.setattr(Environment, "_wait_for", tell_and_wait)
    thread = threading.Thread(target=write)
    thread.start()
    is_writing.wait(60)
    assert run_child(partial(write_in_fork, tables=tables)).finished
    thread.join()
    assert value(tables) == b"forked"
    other.close()


def test_a_process_can_write_that_is_forked_off_as_a_read_of_another_thread_ends(
    tables: LmdbTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_left, is_forked = threading.Event(), threading.Event()
    leave = Environment.leave

    def leave_and_stay(*args: Any) -> None:
        leave(*args)
        if threading.current_thread() is thread:
            has_left.set()
            is_forked.wait(60)

    monkeypatch.setattr(Environment, "leave", leave_and_stay)
    thread = threading.Thread(target=value, args=(tables,))
    thread.start()
    has_left.wait(60)
    ended = run_child(partial(write_in_fork, tables=tables))
    is_forked.set()
    thread.join()
    assert ended.finished


def test_a_fork_of_another_thread_meanwhile_lets_no_transaction_in(
    tables: LmdbTables, shared: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lets go of what it has itself, when its own fork is over."""
    monkeypatch.setattr(environment, "FORK_WAIT_SECONDS", 0.01)

    def fork() -> None:
        open_environments._before_fork()
        open_environments._after_fork()

    open_environments._before_fork()
    try:
        other = threading.Thread(target=fork)
        other.start()
        other.join()
        assert shared._is_paused
        assert shared._lock.locked()
    finally:
        open_environments._after_fork()
    assert value(tables) == b"value"


def test_a_signal_while_a_fork_waits_leaves_the_store_usable(
    tables: LmdbTables, shared: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as waiting:
        waiting.setattr(Environment, "_wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt):
            open_environments._before_fork()
    open_environments._after_fork()  # Python prints the exception, and forks
    assert not shared._lock.locked()
    assert value(tables) == b"value"


def test_a_signal_as_a_write_begins_keeps_no_later_one_waiting(tmp_path: Path) -> None:
    """Also while something refers to the exception, as an interactive Python does to the last."""
    with mulligan.open(tmp_path) as store:
        session = store.session("main")
        session.state.set("a", "first")
        errors: list[KeyboardInterrupt] = []
        while True:
            try:
                with interrupted_at(len(errors)):
                    session.state.set("a", [len(errors), os.urandom(20_000)])
            except KeyboardInterrupt as error:
                errors.append(error)
            else:
                break
            (shared,) = open_environments._environments.values()
            assert not shared.active
            assert not engine_of(store)._writes
            assert not engine_of(store).pins.is_pinned
            assert find_write_lock_owner(shared.directory) is None
        assert session.state.get("a/0") == len(errors) > 20


OURS = re.compile(r"/mulligan/(journal/|engine\.py|pins\.py|clock\.py)")


@contextmanager
def interrupted_at(number: int) -> Iterator[None]:
    """Raise what Ctrl-C raises at one of the places where Python looks for signals.

    Those where a transaction, or what it needs, begins are counted.
    """
    left = number

    def look(frame: FrameType, event: str, arg: object) -> None:
        nonlocal left
        if event in ("call", "c_return") and OURS.search(frame.f_code.co_filename):
            above: FrameType | None = frame
            while above is not None and above.f_code.co_name not in ("__enter__", "__exit__"):
                above = above.f_back
            if above is not None and above.f_code.co_name == "__enter__":
                left -= 1
                if left < 0:
                    raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


def test_too_many_open_files_are_not_called_damage(tmp_path: Path) -> None:
    mulligan.open(tmp_path).close()

    def open_with_few_left(tell: Tell) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        for left in range(8):
            taken = []
            with suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            for handle in taken[:left]:
                os.close(handle)
            try:
                mulligan.open(tmp_path).close()
            except DamageError as error:
                tell(str(error))
            except (MulliganError, OSError):
                pass
            for handle in taken[left:]:
                os.close(handle)
        mulligan.open(tmp_path).close()

    child = run_child(open_with_few_left)
    assert child.told == []
    assert child.finished
