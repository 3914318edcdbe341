"""A drill that is killed or fails leaves nothing behind that the next one does not remove."""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

import mulligan
from mulligan.errors import MulliganError
from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.testing.failpoints import FailpointCounter, fail_at, kill_at
from mulligan.testing.stores import open_store
from mulligan.upkeep import last_drill, run_drill
from mulligan.upkeep.drill.commands import DrillCommand
from mulligan.upkeep.drill.scratch import DRILLING
from tests.children import Tell, run_child
from tests.pictures import picture

POINTS = [
    *(point for point in Failpoint if point.name.startswith("DRILL_")),
    Failpoint.RESTORE_TEMPORARY_WRITTEN,
    Failpoint.RESTORE_WRITTEN,
    Failpoint.JOURNAL_TRANSACTION_STARTED,
    Failpoint.JOURNAL_APPENDED,
    Failpoint.JOURNAL_BEFORE_COMMIT,
    Failpoint.JOURNAL_COMMITTED,
]


class Place:
    """A store and a workspace with one checkpoint; drills use the store's tmp/, or a directory."""

    def __init__(self, root: Path, elsewhere: bool) -> None:
        self.root, self.work, self.store = root, root / "work", root / "store"
        self.scratch = root / "scratch" if elsewhere else None
        (self.work / "src/closed").mkdir(parents=True)
        (self.work / "a.txt").write_bytes(b"one")
        (self.work / "src/closed/b.txt").write_bytes(b"two" * 5000)
        (self.work / "src/closed").chmod(0o500)
        (self.work / "link").symlink_to("src")
        if self.scratch is not None:
            self.scratch.mkdir()
        with mulligan.open(self.store) as store:
            store.session("run", workspace=self.work).checkpoint(label="one")
        self.picture = picture(self.work)

    def drill(self, failpoint: FailpointHook = ignore, *commands: DrillCommand) -> bool:
        with open_store(self.store, failpoint=failpoint) as store:
            session = store.session("run", workspace=self.work)
            variables = {"PATH": os.environ["PATH"]}
            options = {"commands": commands, "scratch": self.scratch, "variables": variables}
            return run_drill(session, "one", **options).ok  # type: ignore[arg-type]

    def left(self) -> list[Path]:
        notes = (self.store / ".mulligan/tmp").glob("drill-*")
        return [*notes, *self.root.rglob(f"{DRILLING}*")]

    def check(self, *, recorded: bool | None = None) -> None:
        """Check that the store is sound and the workspace untouched, and drill once more."""
        assert picture(self.work) == self.picture
        with mulligan.open(self.store) as store:
            assert store.verify().problems == ()
            if recorded is not None:
                assert (last_drill(store.session("run")) is not None) == recorded
        assert self.drill()
        assert self.left() == []


@pytest.fixture(params=[False, True], ids=["in the store", "elsewhere"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path, request.param)


def test_every_point_is_reached(place: Place) -> None:
    reached = FailpointCounter()
    assert place.drill(reached)
    assert [point for point in POINTS if not reached.counts[point]] == []


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_point_of_a_drill(place: Place, point: Failpoint, nth: int) -> None:
    """The first commit stores what a look at the workspace found, the second one the event."""
    killed = run_child(lambda _: place.drill(kill_at(point, nth)) and None)
    assert killed.by_sigkill or nth == 2, f"{point} was not reached"
    is_committed = point is Failpoint.JOURNAL_COMMITTED and nth == 2
    place.check(recorded=is_committed or not killed.by_sigkill)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
@pytest.mark.parametrize("point", POINTS)
def test_an_error_at_a_point(place: Place, point: Failpoint, error: BaseException) -> None:
    with suppress(OSError, MulliganError, KeyboardInterrupt):
        place.drill(fail_at(point, error))
    assert list(place.root.rglob(f"{DRILLING}*")) == []
    place.check()


def test_a_full_disk_at_a_point_is_an_error_of_its_own(place: Place) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(mulligan.errors.DiskFull):
        place.drill(fail_at(Failpoint.DRILL_DIRECTORY_MADE, full))
    assert place.left() == []
    place.check(recorded=False)


def test_a_drill_that_is_killed_while_a_command_runs(place: Place) -> None:
    command = DrillCommand("coder", "drill", ("sh", "-c", "mkdir made; kill -9 $PPID"))
    killed = run_child(lambda _: place.drill(ignore, command) and None)
    assert killed.by_sigkill
    assert place.left() != []
    place.check(recorded=False)


def test_ctrl_c_while_a_command_runs_ends_it(place: Place, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    script = f"exec flock {lock} sh -c 'kill -INT $PARENT; sleep 1000'"

    def body(tell: Tell) -> None:
        command = DrillCommand(
            "coder", "drill", ("sh", "-c", script), env={"PARENT": str(os.getpid())}
        )
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            place.drill(ignore, command)
        except KeyboardInterrupt:
            tell("interrupted")

    assert run_child(body).told == ["interrupted"]
    assert place.left() == []
    # A killed process releases its locks a moment later.
    free = DrillCommand("coder", "drill", ("flock", "--timeout", "120", str(lock), "true"))
    assert place.drill(ignore, free)
    place.check()


def test_the_directory_of_a_living_drill_is_left_to_it(place: Place) -> None:
    looked = []

    def meanwhile(point: Failpoint) -> None:
        if point is Failpoint.DRILL_WRITTEN:
            looked.append(run_child(lambda _: place.drill() and None).finished)

    assert place.drill(meanwhile)
    assert looked == [True]
    assert place.left() == []


def test_a_garbled_note_goes_and_removes_nothing(place: Place) -> None:
    note = place.store / ".mulligan/tmp/drill-0123456789abcdef"
    kept = f'{{"directory": "{place.work}"}}'.encode()
    for content in (b"", b"{}", b"\xff", b'{"directory": 1}', kept):
        note.write_bytes(content)
        place.check()


def test_a_note_whose_directory_is_gone_goes(place: Place) -> None:
    note = place.store / ".mulligan/tmp/drill-0123456789abcdef"
    note.write_text(f'{{"directory": "{place.root}/{DRILLING}0"}}')
    place.check()


def test_tmp_may_be_deleted(place: Place) -> None:
    for file in (place.store / ".mulligan/tmp").iterdir():
        file.unlink()
    (place.store / ".mulligan/tmp").rmdir()
    assert place.drill()
