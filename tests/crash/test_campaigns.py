"""Short turns of the campaigns of ``make crash``: power cuts, failing system calls, damage."""

from __future__ import annotations

import pytest

from mulligan.testing import bitrot, collector, damage, syscall_faults
from mulligan.testing.power import __main__ as power
from mulligan.testing.protections import PROTECTIONS
from mulligan.testing.races import RACES
from tests.scale import times


def test_no_promise_is_broken_by_a_power_cut(capsys: pytest.CaptureFixture[str]) -> None:
    if reason := power.missing("ext4"):
        pytest.skip(reason)
    status = power.main(["--cuts", "6", "--steps", "3", "--filesystem", "ext4"])
    assert status == 0, capsys.readouterr().out


@pytest.mark.parametrize("command", syscall_faults.SCENARIOS)
def test_a_command_that_is_killed_or_fails_at_any_call_loses_nothing(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if reason := syscall_faults.missing():
        pytest.skip(reason)
    status = syscall_faults.main(["--faults", str(times(1)), "--command", command])
    assert status == 0, capsys.readouterr().out


def test_no_damage_ends_a_command_or_gives_wrong_files(capsys: pytest.CaptureFixture[str]) -> None:
    status = damage.main(["--rounds", str(times(2))])
    assert status == 0, capsys.readouterr().out


def test_every_flipped_bit_is_found_or_in_free_space(capsys: pytest.CaptureFixture[str]) -> None:
    status = bitrot.main(["--rounds", "25"])
    assert status == 0, capsys.readouterr().out


def test_several_damages_at_once_are_repaired(capsys: pytest.CaptureFixture[str]) -> None:
    status = bitrot.main(["--rounds", str(times(10)), "--damages", "5"])
    assert status == 0, capsys.readouterr().out


def test_reclaiming_space_beside_others_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    status = collector.main(["--rounds", "4"])
    assert status == 0, capsys.readouterr().out


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_a_collection_without_one_of_its_protections_is_noticed(
    protection: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert collector.main(["--rounds", "1", "--without", protection]) == 1
    out = capsys.readouterr().out
    assert any(f"\n  {race}: " in out for race in RACES), out
