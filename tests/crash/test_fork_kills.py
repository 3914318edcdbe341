"""A fork with a directory is made whole or not at all, wherever it is killed or a call fails."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan import Session
from mulligan.errors import MulliganError, RestoreIncomplete, UnsafeWorkspace
from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.locate.find import Note, find_in
from mulligan.locate.pointer import read_pointer
from mulligan.opener import make_outside
from mulligan.session.write.fork_directory import end_interrupted
from mulligan.store import Store
from mulligan.testing.failpoints import FailpointCounter, fail_at, kill_at
from mulligan.testing.stores import open_store
from mulligan.workspace import syscalls
from tests.children import Tell, run_child
from tests.pictures import picture
from tests.scale import SCALE

POINTS = [
    *(point for point in Failpoint if point.name.startswith(("FORK_", "POINTER_"))),
    Failpoint.RESTORE_TEMPORARY_WRITTEN,
    Failpoint.RESTORE_WRITTEN,
    Failpoint.JOURNAL_TRANSACTION_STARTED,
    Failpoint.JOURNAL_APPENDED,
    Failpoint.JOURNAL_BEFORE_COMMIT,
    Failpoint.JOURNAL_COMMITTED,
]
TARGETS = ["new", "made/on/the/way", "there"]


class Place:
    """A store, a workspace with one checkpoint, and a target for forks of it."""

    def __init__(self, root: Path, target: str) -> None:
        self.root, self.work, self.store = root, root / "work", root / "store"
        self.target = root / target
        self.was_there = target == "there"
        (self.work / "src/closed").mkdir(parents=True)
        (self.work / "a.txt").write_bytes(b"one")
        (self.work / "src/b.txt").write_bytes(b"two" * 5000)
        (self.work / "src/closed/c.txt").write_bytes(b"three")
        (self.work / "src/closed").chmod(0o500)
        (self.work / "link").symlink_to("src")
        self.work.chmod(0o750)
        self.make_target()
        with mulligan.open(self.store) as store:
            store.session("run", workspace=self.work).checkpoint(label="one")

    def make_target(self) -> None:
        if self.was_there:
            self.target.mkdir(mode=0o750)

    def fork(self, name: str | None = "fork", failpoint: FailpointHook = ignore) -> None:
        with open_store(self.store, failpoint=failpoint) as store:
            self.forked(store.session("run", workspace=self.work), name)

    def forked(self, session: Session, name: str | None) -> Session:
        return session.fork("one", name, self.target, pointer=True)

    def is_made(self, name: str = "fork", *, verify: bool = True) -> bool:
        """Open the store, check that all fits together, and return whether there is a fork."""
        with mulligan.open(self.store) as store:
            names = [session.name for session in store.sessions()]
            self.check(store, name in names, name)
            assert not verify or store.verify().problems == ()
        return name in names

    def check(self, store: Store, is_made: bool, name: str) -> None:
        assert list(self.root.rglob(".mulligan.new*")) == []
        assert list((self.store / ".mulligan/tmp").glob("fork-*")) == []
        if not is_made:
            assert self.target.exists() == self.was_there
            assert not self.was_there or list(self.target.iterdir()) == []
            assert not (self.root / "made").exists()
            return
        assert picture(self.target) == picture(self.work)
        pointer = read_pointer(self.target)
        assert pointer is not None
        assert (pointer.session, pointer.is_in_place) == (name, True)
        session = store.session(name, workspace=self.target)
        assert session.files.directory == self.target
        assert session.diff("one").files == ()

    def clear(self) -> None:
        shutil.rmtree(self.root / "made" if (self.root / "made").exists() else self.target, True)
        self.make_target()


@pytest.fixture(params=TARGETS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path, request.param)


def test_every_point_is_reached(place: Place) -> None:
    reached = FailpointCounter()
    place.fork(failpoint=reached)
    assert [point for point in POINTS if not reached.counts[point]] == []
    assert place.is_made()


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_point_of_a_fork(place: Place, point: Failpoint, nth: int) -> None:
    killed = run_child(lambda _: place.fork(failpoint=kill_at(point, nth)))
    assert killed.by_sigkill or nth == 2, f"{point} was not reached"
    if not place.is_made():
        assert killed.by_sigkill
        place.fork()
        assert place.is_made()


def test_a_fork_without_a_name_that_was_killed_takes_none_away(place: Place) -> None:
    def body(_: Tell) -> None:
        with open_store(place.store, failpoint=kill_at(Failpoint.FORK_WRITTEN)) as store:
            place.forked(store.session("run", workspace=place.work), None)

    assert run_child(body).by_sigkill
    assert not place.is_made("run-fork-1")
    place.fork(name=None)
    assert place.is_made("run-fork-1")


def test_a_project_around_the_target_leaves_the_files_of_a_fork_alone(place: Place) -> None:
    """Its pointer is put back beside a fork that was interrupted."""
    state = place.root / "state"
    make_outside(place.root, state)
    killed = run_child(lambda _: place.fork(failpoint=kill_at(Failpoint.JOURNAL_COMMITTED)))
    assert killed.by_sigkill
    (place.root / ".mulligan").unlink()
    found = find_in(place.root, state, write=True)
    assert found is not None
    assert found.note is Note.PUT_BACK
    assert place.is_made()


def test_the_fork_of_a_living_process_is_left_to_it(tmp_path: Path) -> None:
    place, looked = Place(tmp_path, "new"), []

    def failpoint(point: Failpoint) -> None:
        if point in (Failpoint.FORK_WRITTEN, Failpoint.FORK_MOVED):
            looked.append(run_child(lambda _: mulligan.open(place.store).close()).finished)

    place.fork(failpoint=failpoint)
    assert looked == [True, True]
    assert place.is_made()


def test_a_target_that_is_taken_meanwhile_is_not_touched(tmp_path: Path) -> None:
    place = Place(tmp_path, "new")

    def failpoint(point: Failpoint) -> None:
        if point is Failpoint.JOURNAL_COMMITTED and not place.target.exists():
            place.target.mkdir()
            (place.target / "mine").write_bytes(b"mine")

    with pytest.raises(RestoreIncomplete, match="was made") as caught:
        place.fork(failpoint=failpoint)
    assert "next command" in caught.value.hint
    assert [path.name for path in place.target.iterdir()] == ["mine"]
    shutil.rmtree(place.target)
    assert place.is_made()


# --- errors of the system --------------------------------------------------------------------

CALLS: list[tuple[Any, str]] = [
    *((os, name) for name in ("open", "mkdir", "rmdir", "rename", "replace", "unlink", "symlink")),
    *((os, name) for name in ("write", "pwrite", "fsync", "fchmod", "chmod", "utime", "fstat")),
    *((os, name) for name in ("stat", "listdir", "scandir", "dup", "ftruncate")),
    (syscalls, "rename"),
    (syscalls, "sync_filesystem"),
    (fcntl, "flock"),
]


class Failing:
    """Lets the nth of all calls fail, and counts them."""

    def __init__(self, nth: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self._nth = 0, nth
        for module, name in CALLS:
            monkeypatch.setattr(module, name, self._wrapped(getattr(module, name)))

    def _wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            if self.count == self._nth:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(*arguments, **named)

        return call


@pytest.fixture(params=[True, False], ids=["syncfs", "no syncfs"])
def _syncs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(syscalls, "syncs_as_a_whole", lambda _: False)


@pytest.mark.usefixtures("_syncs")
def test_an_error_at_any_call(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    step = 4 if SCALE == 1 else 1
    nth, made, failed = random.SystemRandom().randrange(step), 0, 0
    while True:
        nth, name = nth + step, f"fork-{nth}"
        with mulligan.open(place.store) as store:
            session = store.session("run", workspace=place.work)
            with monkeypatch.context() as patched:
                failing = Failing(nth, patched)
                try:
                    place.forked(session, name)
                    is_done = True
                except (OSError, MulliganError):
                    is_done = False
        # Damage would stay, so that not each of the many forks has to be verified at once.
        is_made = place.is_made(name, verify=nth % 5 == 0 or failing.count < nth)
        assert is_made or not is_done, f"call {nth} of {failing.count}: acknowledged and not made"
        made, failed = made + is_made, failed + (not is_done)
        if failing.count < nth:
            break
        place.clear()
    assert is_done
    assert failed > 20 / step
    assert made > 1


@pytest.mark.parametrize(
    "point", [point for point in POINTS if point.name.startswith(("JOURNAL_", "FORK_"))]
)
def test_an_error_at_a_point(place: Place, point: Failpoint) -> None:
    with suppress(OSError, MulliganError):
        place.fork(failpoint=fail_at(point, OSError(errno.EIO, "Input/output error")))
    if not place.is_made():
        place.fork()
        assert place.is_made()


def test_a_garbled_note_goes(tmp_path: Path) -> None:
    place = Place(tmp_path, "new")
    note = place.store / ".mulligan/tmp/fork-0123456789abcdef"
    for content in (b"", b"{}", b"\xff", b'{"token": 1}'):
        note.write_bytes(content)
        with mulligan.open(place.store) as store:
            end_interrupted(store._engine)
        assert not note.exists()


def test_a_target_that_another_fork_takes_meanwhile_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path, "new")

    def other(_: Tell) -> None:
        with mulligan.open(place.store) as store:
            store.session("run", workspace=place.work).fork("one", "quick", place.target)

    def meanwhile(point: Failpoint) -> None:
        if point is Failpoint.FORK_WRITTEN:
            assert run_child(other).finished

    with open_store(place.store, failpoint=meanwhile) as store:
        session = store.session("run", workspace=place.work)
        with pytest.raises(UnsafeWorkspace):
            session.fork("one", "slow", place.target)
        assert [found.name for found in store.sessions()] == ["run", "quick"]
    assert not [path for path in tmp_path.iterdir() if "fork-" in path.name]
    assert (place.target / "a.txt").read_bytes() == b"one"
