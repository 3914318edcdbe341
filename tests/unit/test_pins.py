"""Pins and grace periods: what a grace period waits for, and what it does not wait for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mulligan.pins import Pins
from tests.nobody import as_nobody, place_of_nobody

HOLD = """
import sys
from pathlib import Path
from mulligan.pins import Pins
with Pins(Path(sys.argv[1])).pin():
    print("pinned", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["disk", "memory"])
def pins(request: pytest.FixtureRequest, tmp_path: Path) -> Pins:
    return Pins(tmp_path if request.param == "disk" else None)


def hold(locks: Path) -> subprocess.Popen[bytes]:
    """Start a process that holds a pin until its input is closed."""
    command = [sys.executable, "-c", HOLD, str(locks)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"pinned\n"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.communicate()


def test_without_pins_a_grace_period_is_over_at_once(pins: Pins) -> None:
    assert pins.start_grace_period().is_over()


def test_it_waits_for_pins_from_before_its_start(pins: Pins) -> None:
    with pins.pin():
        period = pins.start_grace_period()
        assert not period.is_over()
    assert period.is_over()


def test_it_does_not_wait_for_later_pins(pins: Pins) -> None:
    with pins.pin():
        pass
    period = pins.start_grace_period()
    with pins.pin():
        assert period.is_over()


def test_the_epoch_of_pins_changes_when_a_grace_period_starts(pins: Pins) -> None:
    """Who pins twice in the same epoch need not look whether something was removed."""
    with pins.pin() as first:
        pass
    with pins.pin() as second, pins.pin() as inside:
        pass
    assert first is second is inside
    with pins.pin() as before:
        pins.start_grace_period()
        with pins.pin() as after:
            assert before is first
            assert after is not first
    with pins.pin() as later:
        assert later is after


def test_pins_nest(pins: Pins) -> None:
    with pins.pin():
        with pins.pin():
            period = pins.start_grace_period()
        assert not period.is_over()
        assert pins.is_pinned
    assert period.is_over()
    assert not pins.is_pinned


def test_a_pin_taken_inside_another_one_after_the_start_does_not_prolong_it(pins: Pins) -> None:
    first = pins.pin()
    first.__enter__()
    period = pins.start_grace_period()
    with pins.pin():
        first.__exit__(None, None, None)
        assert period.is_over()


def test_threads_are_waited_for_one_by_one(pins: Pins) -> None:
    entered, leave = threading.Event(), threading.Event()

    def operate() -> None:
        with pins.pin():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=operate)
    thread.start()
    entered.wait()
    period = pins.start_grace_period()
    with pins.pin():
        assert not period.is_over()
        leave.set()
        thread.join()
        assert period.is_over()


def test_other_processes_are_waited_for(tmp_path: Path) -> None:
    process = hold(tmp_path)
    period = Pins(tmp_path).start_grace_period()
    assert not period.is_over()
    end(process)
    assert period.is_over()


def test_a_killed_process_gives_its_pins_up(tmp_path: Path) -> None:
    process = hold(tmp_path)
    period = Pins(tmp_path).start_grace_period()
    process.kill()
    process.communicate()
    assert period.is_over()


def test_a_grace_period_waits_for_what_an_abandoned_one_waited_for(tmp_path: Path) -> None:
    process = hold(tmp_path)
    Pins(tmp_path).start_grace_period()  # its process dies here
    second = Pins(tmp_path).start_grace_period()
    assert not second.is_over()
    end(process)
    assert second.is_over()


def test_no_files_are_left_behind(tmp_path: Path) -> None:
    pins = Pins(tmp_path)
    for _ in range(3):
        with pins.pin():
            pass
        assert pins.start_grace_period().is_over()
    assert [entry.name for entry in tmp_path.iterdir() if entry.name != "pins"] == []


def test_a_forked_process_does_not_hold_its_parents_pins(tmp_path: Path) -> None:
    pins = Pins(tmp_path)
    read, write = os.pipe()
    with pins.pin():
        child = os.fork()
        if child == 0:
            os.read(read, 1)
            os._exit(0)
        period = pins.start_grace_period()
        assert not period.is_over()
    try:
        assert period.is_over()
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)


def test_a_forked_process_that_leaves_its_parents_pin_after_one_of_its_own_releases_nothing(
    tmp_path: Path,
) -> None:
    pins = Pins(tmp_path)
    pin = pins.pin()
    with pin:
        child = os.fork()
        if not child:
            code = 1
            try:
                with pins.pin():
                    pass
                pin.__exit__(None, None, None)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        period = pins.start_grace_period()
        assert not period.is_over()
    assert period.is_over()


def test_a_forked_process_takes_pins_of_its_own(tmp_path: Path) -> None:
    pins = Pins(tmp_path)
    ready, go = os.pipe(), os.pipe()
    with pins.pin():
        child = os.fork()
        if child == 0:
            with pins.pin():
                os.write(ready[1], b"x")
                os.read(go[0], 1)
            os._exit(0)
    os.read(ready[0], 1)
    period = pins.start_grace_period()
    assert not period.is_over()
    os.write(go[1], b"x")
    os.waitpid(child, 0)
    assert period.is_over()
    for end_of_pipe in (*ready, *go):
        os.close(end_of_pipe)


def test_a_directory_that_cannot_be_written_is_no_hindrance() -> None:
    with place_of_nobody() as place:
        as_nobody(lambda: pin_without_permission(place))


def pin_without_permission(place: Path) -> None:
    place.chmod(0o500)
    pins = Pins(place)
    with pins.pin():
        assert pins.is_pinned
    assert not pins.is_pinned
    assert list(place.iterdir()) == []


def test_an_epoch_lasts_until_a_grace_period_starts(pins: Pins) -> None:
    with pins.pin() as first, pins.pin() as nested:
        assert nested is first
    with pins.pin() as second:
        assert second is first
    pins.start_grace_period()
    with pins.pin() as third:
        assert third is not first


def test_without_a_file_no_epoch_is_taken_for_another() -> None:
    """What is remembered by the epoch of a pin would be used after its removal otherwise."""
    with place_of_nobody() as place:
        as_nobody(lambda: epochs_without_permission(place))


def epochs_without_permission(place: Path) -> None:
    place.chmod(0o500)
    pins = Pins(place)
    with pins.pin() as first:
        pass
    with pins.pin() as second:
        assert second is not first
