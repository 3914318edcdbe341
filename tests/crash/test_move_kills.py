"""A store that is moved is killed on the way: it is whole at one of the two places, and found."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import mulligan
from mulligan.errors import NotAStore, StoreInUse
from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.layout import read_format
from mulligan.locate.find import find_in
from mulligan.locate.pointer import read_pointer, write_pointer
from mulligan.locate.project import remember
from mulligan.locate.registry import known_stores, staged
from mulligan.move_store import move_inside, move_outside
from mulligan.opener import make_outside
from mulligan.testing.failpoints import kill_at
from mulligan.testing.stores import open_store
from tests.children import Tell, run_child
from tests.scale import times

POINTS = [p for p in Failpoint if p.name.startswith(("MOVE_", "POINTER_"))]
INSIDE_POINTS = [p for p in POINTS if not p.name.startswith("POINTER_")]


class Setting:
    """A project whose store is to be moved one way, and a fork of it elsewhere."""

    def __init__(self, root: Path, *, outward: bool) -> None:
        self.outward = outward
        self.state = root / "state"
        self.work, self.fork = root / "work", root / "fork"
        for made in (self.work, self.fork):
            made.mkdir()
        self.old = self.work / ".mulligan" if outward else make_outside(self.work, self.state)
        with mulligan.open(self.old) as store:
            for number in range(20):
                store.session("main").state.set(f"k{number}", os.urandom(30_000))
            self.head = store.session("main").head
            self.value = store.session("main").state.get("")
        write_pointer(self.fork, str(self.old), "bold")
        remember(self.old, self.fork, "bold")

    def move(self, failpoint: FailpointHook = ignore) -> Path:
        if self.outward:
            return move_outside(self.old, self.state, failpoint)
        return move_inside(self.old, self.work, self.state, failpoint)

    def check(self) -> Path:
        """Find the store as the next command does, from the project and the fork."""
        found = find_in(self.work, self.state, write=True)
        assert found is not None
        with mulligan.open(found.store, create=False) as store:
            assert store.verify().ok
            session = store.session("main", create=False)
            assert session.head == self.head
            assert session.state.get("") == self.value
        fork = find_in(self.fork, self.state, write=True)
        assert fork is not None
        assert fork.store == found.store
        assert [known.path for known in known_stores(self.state)] in ([found.store], [])
        return found.store

    def check_done(self) -> None:
        """Check that the move came to its end and left nothing behind."""
        new = self.check()
        assert (new.name == ".mulligan") != self.outward
        with staged(self.state):
            pass  # the next one who makes or moves a store deletes what a killed one left there
        assert not self.old.is_dir()
        names = [entry.name for entry in self.work.iterdir()]
        assert names == [".mulligan"]
        assert (read_pointer(self.work) is not None) == self.outward
        left = [e.name for e in (self.state / "stores").iterdir() if e.name.startswith(".new")]
        assert left == []


@pytest.fixture(params=[True, False], ids=["outside", "inside"])
def setting(request: pytest.FixtureRequest, tmp_path: Path) -> Setting:
    return Setting(tmp_path, outward=request.param)


def in_child(body: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            body()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def test_a_store_is_moved(setting: Setting) -> None:
    identity = read_format(setting.old).id
    new = setting.move()
    assert read_format(new).id == identity
    setting.check_done()


def test_a_fork_that_was_interrupted_is_ended_in_the_new_place(setting: Setting) -> None:
    (setting.work / "a.txt").write_text("one")
    place = setting.work.parent / "place"

    def fork() -> None:
        with open_store(setting.old, failpoint=kill_at(Failpoint.FORK_MOVED)) as store:
            session = store.session("side", workspace=setting.work)
            session.checkpoint(label="one")
            session.fork("one", "late", place)

    place.mkdir()
    assert in_child(fork) == signal.SIGKILL
    assert list(place.glob(".mulligan.new-fork-*"))
    with mulligan.open(setting.move(), create=False) as store:
        assert store.session("late", create=False).head
    assert [path.name for path in place.iterdir()] == ["a.txt"]


def test_there_and_back_again(setting: Setting) -> None:
    setting.old, setting.outward = setting.move(), not setting.outward
    setting.move()
    setting.check_done()


@pytest.mark.parametrize("point", POINTS)
def test_killed_on_the_way(setting: Setting, point: Failpoint) -> None:
    if not setting.outward and point not in INSIDE_POINTS:
        pytest.skip("no pointer is written on this way")
    status = in_child(lambda: setting.move(kill_at(point)))
    assert os.WTERMSIG(status) == signal.SIGKILL
    store = setting.check()
    is_moved = point.name not in ("MOVE_COPIED", "MOVE_ANNOUNCED")
    assert (store != setting.old) == is_moved
    if not is_moved:
        setting.move()
    setting.check_done()


@pytest.mark.parametrize("seed", range(times(3)))
def test_killed_at_any_moment(setting: Setting, seed: int) -> None:
    """A process is killed at a random moment of the move, again and again, until it succeeds."""
    rng = random.Random(seed)

    def move(tell: Tell) -> None:
        tell("ready")
        setting.move()

    for attempt in range(40):
        if setting.check() != setting.old:
            break
        run_child(move, seconds=rng.uniform(0, 0.004) * (attempt + 1))
    else:
        setting.move()
    setting.check_done()


def test_the_store_of_a_copy_is_not_taken_for_where_a_killed_move_was_going(
    tmp_path: Path,
) -> None:
    setting = Setting(tmp_path, outward=True)
    copy = tmp_path / "backup" / "work"
    shutil.copytree(setting.work, copy)
    assert in_child(lambda: setting.move(kill_at(Failpoint.MOVE_ANNOUNCED))) == signal.SIGKILL
    other = move_outside(copy / ".mulligan", setting.state)
    found = find_in(setting.work, setting.state, write=True)
    assert found is not None
    assert found.store == setting.old
    assert setting.move() != other


def test_an_old_copy_that_is_put_where_a_killed_move_was_going_does_not_replace_the_store(
    tmp_path: Path,
) -> None:
    """Once the store is used again, the move is off: what is at its target later is no copy."""
    setting = Setting(tmp_path, outward=False)
    backup = tmp_path / "backup"
    shutil.copytree(setting.old, backup)
    assert in_child(lambda: setting.move(kill_at(Failpoint.MOVE_ANNOUNCED))) == signal.SIGKILL
    with mulligan.open(setting.old, create=False) as store:
        store.session("main").state.set("later", 1)
    (setting.work / ".mulligan").unlink(missing_ok=True)
    backup.rename(setting.work / ".mulligan")
    with staged(setting.state):
        pass  # deletes stores that were moved
    with mulligan.open(setting.old, create=False) as store:
        assert store.session("main").state.get("later") == 1


def test_a_store_that_is_open_elsewhere_stays(setting: Setting) -> None:
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        store = mulligan.open(setting.old)
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        store.close()
        os._exit(0)
    os.read(ready[0], 1)
    with pytest.raises(StoreInUse):
        setting.move()
    os.write(go[1], b"x")
    os.waitpid(pid, 0)
    assert setting.check() == setting.old
    setting.move()
    setting.check_done()


def test_a_store_with_a_symlink_in_it_stays(setting: Setting) -> None:
    (setting.old / "packs").rename(setting.old.parent / ".mulligan.new-packs")
    (setting.old / "packs").symlink_to(setting.old.parent / ".mulligan.new-packs")
    kept = shutil.copytree(setting.old.parent / ".mulligan.new-packs", setting.state / "kept")
    with pytest.raises(NotAStore, match="packs"):
        setting.move()
    assert list(kept.iterdir())
    assert (setting.old / "FORMAT").is_file()
