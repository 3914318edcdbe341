"""Who may capture and who may restore the files of a directory, and who waits for whom."""

from __future__ import annotations

import fcntl
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mulligan
from mulligan.engine import Engine
from mulligan.errors import RestoreBusy
from mulligan.failpoints import Failpoint
from mulligan.journal.lock_owner import LockOwner
from mulligan.store import Store
from mulligan.testing.failpoints import kill_at
from mulligan.testing.stores import open_store
from mulligan.workspace import locks
from mulligan.workspace.locks import GATE, lock_directory, lock_name, share_directory
from tests.children import Tell, run_child


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "parent" / "work"
    made.mkdir(parents=True)
    (made / "file").write_text("file")
    return made


@pytest.fixture
def told() -> list[LockOwner | None]:
    return []


@pytest.fixture
def store(
    tmp_path: Path, told: list[LockOwner | None], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    monkeypatch.setattr(locks, "REPORT_AFTER_SECONDS", 0.0)
    with mulligan.open(tmp_path / "store", on_wait=told.append) as opened:
        yield opened


@pytest.fixture
def engine(store: Store) -> Engine:
    return store._engine


@pytest.fixture
def other_path(tmp_path: Path, work: Path) -> Path:
    link = tmp_path / "link"
    link.symlink_to(work.parent)
    return link / "work"


@pytest.fixture
def bound(tmp_path: Path, work: Path) -> Iterator[Path]:
    """The same directory by a path that no symlink explains."""
    place = tmp_path / "bound"
    place.mkdir()
    done = subprocess.run(["mount", "--bind", work, place], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


class Elsewhere:
    """A process that holds a lock until it is told to let go."""

    def __init__(self, body: Callable[[], None]) -> None:
        self._told, tell = os.pipe()
        hear, self._end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._end)
            try:
                with body():
                    os.write(tell, b"!")
                    os.read(hear, 1)
            finally:
                os._exit(0)
        os.close(tell)
        os.close(hear)
        assert os.read(self._told, 1) == b"!"

    def let_go(self) -> None:
        os.close(self._end)
        os.waitpid(self.pid, 0)
        os.close(self._told)


def test_every_path_to_a_directory_has_the_same_lock(
    work: Path, other_path: Path, tmp_path: Path
) -> None:
    assert lock_name(other_path) == lock_name(work)
    assert lock_name(tmp_path) != lock_name(work)


def test_a_directory_that_moved_keeps_its_lock(work: Path, tmp_path: Path) -> None:
    before = lock_name(work)
    assert lock_name(work.rename(tmp_path / "moved")) == before


def test_two_restores_of_a_directory_meet_though_it_has_two_mounts(
    tmp_path: Path, store: Store, work: Path, bound: Path
) -> None:
    session = store.session("run", workspace=work)
    made = session.checkpoint()

    def body() -> object:
        with mulligan.open(tmp_path / "store") as opened:
            return lock_directory(opened._engine, work)

    other = Elsewhere(body)
    try:
        with pytest.raises(RestoreBusy):
            store.session("run", workspace=bound).restore(made)
    finally:
        other.let_go()
    assert store.session("run", workspace=bound).restore(made).problems == ()


def test_what_was_interrupted_is_finished_by_another_path_to_the_directory(
    tmp_path: Path, store: Store, work: Path, bound: Path
) -> None:
    store.session("run", workspace=work).checkpoint(label="then")
    (work / "file").write_text("now")

    def body(_: Tell) -> None:
        hook = kill_at(Failpoint.RESTORE_TEMPORARY_WRITTEN)
        with open_store(tmp_path / "store", failpoint=hook) as opened:
            opened.session("run", workspace=work).restore("then")

    assert run_child(body).by_sigkill
    assert store.session("run", workspace=bound).internal.recovered is not None
    assert (work / "file").read_text() == "file"


def test_a_capture_waits_for_a_restore_and_says_for_whom(
    tmp_path: Path, engine: Engine, work: Path, told: list[LockOwner | None]
) -> None:
    other = Elsewhere(lambda: lock_directory(mulligan.open(tmp_path / "store")._engine, work))
    released = []

    def waiting(holder: LockOwner | None) -> None:
        told.append(holder)
        released.append(other.let_go())

    engine._on_wait_hook = waiting
    with share_directory(engine, work):
        assert released == [None]
    [holder] = told
    assert holder is not None
    assert (holder.pid, holder.doing) == (other.pid, "restoring files")


def test_a_restore_waits_for_captures_that_are_under_way(
    tmp_path: Path, engine: Engine, work: Path, told: list[LockOwner | None]
) -> None:
    other = Elsewhere(lambda: share_directory(mulligan.open(tmp_path / "store")._engine, work))
    released = []

    def waiting(holder: LockOwner | None) -> None:
        told.append(holder)
        released.append(other.let_go())

    engine._on_wait_hook = waiting
    with lock_directory(engine, work):
        assert released == [None]
    [holder] = told
    assert holder is not None
    assert (holder.pid, holder.doing) == (other.pid, "capturing files")


def test_a_second_restore_is_refused_while_the_first_waits_for_a_capture(
    engine: Engine, work: Path
) -> None:
    order: list[str] = []
    with share_directory(engine, work):
        first = threading.Thread(target=lambda: _restore(engine, work, order))
        first.start()
        _until_gate_is_shut(engine, work)
        with pytest.raises(RestoreBusy):
            _in_a_thread(lambda: _restore(engine, work, order))
    first.join()
    assert order == ["restore"]


def test_captures_one_after_the_other_do_not_keep_a_restore_out(engine: Engine, work: Path) -> None:
    order: list[str] = []

    def capture() -> None:
        with share_directory(engine, work):
            order.append("capture")

    with share_directory(engine, work):
        restore = threading.Thread(target=lambda: _restore(engine, work, order))
        restore.start()
        _until_gate_is_shut(engine, work)
        later = threading.Thread(target=capture)
        later.start()
    restore.join()
    later.join()
    assert order == ["restore", "capture"]


def test_two_captures_do_not_wait_for_each_other(engine: Engine, work: Path) -> None:
    with share_directory(engine, work):
        _in_a_thread(lambda: share_directory(engine, work).__enter__())


@pytest.mark.parametrize("inner", [lock_directory, share_directory])
@pytest.mark.parametrize("outer", [lock_directory, share_directory])
def test_a_thread_does_not_wait_for_itself(
    engine: Engine, work: Path, other_path: Path, outer: Callable, inner: Callable
) -> None:
    with outer(engine, work), pytest.raises(RestoreBusy, match="This thread"):
        inner(engine, other_path).__enter__()
    with inner(engine, work):
        pass


def test_threads_of_a_store_in_memory_keep_apart(work: Path) -> None:
    order: list[str] = []
    with mulligan.open("memory:") as store:
        engine = store._engine
        with lock_directory(engine, work):
            thread = threading.Thread(target=lambda: _restore(engine, work, order))
            thread.start()
            order.append("first")
        thread.join()
        pid = os.fork()
        if pid == 0:
            os._exit(_forked(engine, work))
        assert os.waitpid(pid, 0)[1] == 0
    assert order == ["first", "restore"]


def _forked(engine: Engine, work: Path) -> int:
    with share_directory(engine, work):
        return 0


def test_where_nothing_can_be_written_a_capture_does_without_a_lock(
    tmp_path: Path, store: Store, work: Path
) -> None:
    with (
        mulligan.open(tmp_path / "store", read_only=True) as reading,
        share_directory(reading._engine, work) as marks,
    ):
        assert marks.read() == set()
    assert list((tmp_path / "store" / ".mulligan" / "locks").iterdir()) == []


def test_marks_outlive_the_lock(engine: Engine, work: Path) -> None:
    with lock_directory(engine, work) as marks:
        marks.add(12)
        marks.add(3)
        marks.add(12)
    with share_directory(engine, work) as marks:
        assert marks.read() == {3, 12}
        marks.remove(3, 12)
        assert marks.read() == set()


def _restore(engine: Engine, work: Path, order: list[str]) -> None:
    with lock_directory(engine, work):
        order.append("restore")


def _in_a_thread(body: Callable[[], object]) -> None:
    """Run something in a thread and raise what it raises."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            body()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def _until_gate_is_shut(engine: Engine, work: Path) -> None:
    """Wait until a restore holds the gate."""
    assert engine.directory is not None
    file = engine.directory / "locks" / lock_name(work, GATE)
    while True:
        with file.open("w") as gate:
            try:
                fcntl.flock(gate, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return
