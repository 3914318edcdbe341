"""A store that is removed or replaced while it is open: no write is acknowledged any more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import mulligan
from mulligan import Session
from mulligan.errors import StoreGone
from mulligan.recovery.watch import RecoveryWatch, Running
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store
from tests.children import run_child


def remove(store: Path) -> None:
    shutil.rmtree(store)


def move(store: Path) -> None:
    store.rename(store.with_name("moved"))


def replace(store: Path) -> None:
    """The directory is deleted and another store is made in its place, with a session alike."""
    shutil.rmtree(store)
    assert run_child(lambda _: mulligan.open(store).session("main").close()).finished


WAYS = [(remove, "removed"), (move, "removed or moved"), (replace, "replaced")]


@pytest.fixture
def session(tmp_path: Path) -> Session:
    made = mulligan.open(tmp_path).agent("a", session="main")
    made.state.set("large", "x" * 10_000)
    return made


@pytest.mark.parametrize(("way", "said"), WAYS)
def test_a_check_says_that_the_store_is_gone(tmp_path: Path, way, said: str) -> None:
    with mulligan.open(tmp_path) as store:
        store.session("main").state.set("a", 1)
        way(tmp_path / ".mulligan")
        with pytest.raises(StoreGone, match=said):
            store.verify()


@pytest.mark.parametrize(("way", "said"), WAYS)
def test_no_write_is_acknowledged(session: Session, tmp_path: Path, way, said: str) -> None:
    way(tmp_path / ".mulligan")
    for write in (
        lambda: session.state.set("a", 1),
        lambda: session.state.set("b", "y" * 10_000),
        session.checkpoint,
        lambda: session.tasks.plan(["one"]),
        lambda: session.fork("#1", "bold"),
    ):
        with pytest.raises(StoreGone, match=said) as gone:
            write()
        assert gone.value.exit_code == 19
        assert not gone.value.retryable
    session.close()
    assert (tmp_path / ".mulligan").exists() == (way is replace)


@pytest.mark.parametrize(("way", "said"), WAYS)
def test_nor_one_with_files(tmp_path: Path, way, said: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for number in range(20):
        (work / f"file-{number}").write_text(f"one {number}" * 1000)
    with mulligan.open(tmp_path) as store:
        session = store.session("main", workspace=work)
        point = session.checkpoint()
        (work / "file-1").write_text("two" * 100_000)
        way(tmp_path / ".mulligan")
        for write in (
            session.checkpoint,
            lambda: session.restore(point),
            lambda: session.fork(point, "bold", workspace=tmp_path / "fork"),
        ):
            with pytest.raises(StoreGone, match=said):
                write()
    assert (work / "file-1").read_text() == "two" * 100_000
    assert not (tmp_path / "fork").exists()


@pytest.mark.parametrize(("way", "said"), WAYS)
def test_a_loop_ends_at_its_next_safe_point(
    session: Session, tmp_path: Path, way, said: str
) -> None:
    finished = []

    def work() -> None:
        for cycle in session.loop():
            way(tmp_path / ".mulligan")
            finished.append(cycle.number)

    with pytest.raises(StoreGone, match=said):
        work()
    assert finished == [1], "the cycle under way came to its end, and no other was begun"


def test_a_cycle_that_fails_meanwhile_says_why(session: Session, tmp_path: Path) -> None:
    def work() -> None:
        for cycle in session.loop():
            with cycle:
                remove(tmp_path / ".mulligan")
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()


@pytest.mark.parametrize(("way", "said"), WAYS)
def test_a_watcher_says_so_at_its_next_look(tmp_path: Path, way, said: str) -> None:
    def start(name: str, rung: str) -> Running:
        raise AssertionError

    with open_store(tmp_path, clock=FakeClock()) as store:
        store.session("main")
        watcher = RecoveryWatch(store, start)
        assert watcher.look() == []
        way(tmp_path / ".mulligan")
        with pytest.raises(StoreGone, match=said):
            watcher.look()


@pytest.mark.parametrize(("way", "said"), WAYS)
def test_whoever_follows_the_events_is_told(tmp_path: Path, way, said: str) -> None:
    with open_store(tmp_path, clock=FakeClock()) as store:
        events = store.session("main").events(follow=True)
        assert next(events).kind == "session.created"
        way(tmp_path / ".mulligan")
        with pytest.raises(StoreGone, match=said):
            next(events)


def test_a_store_that_is_there_is_passed(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store, mulligan.open("memory:") as memory:
        store.check_present()
        memory.check_present()
        shutil.rmtree(tmp_path / ".mulligan" / "tmp")  # that is safe to delete
        store.check_present()
        assert store.session("run").checkpoint().seq == 2
