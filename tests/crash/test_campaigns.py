"""Short turns of the campaigns of ``make crash``: power cuts, strikes at system calls, damage."""

from __future__ import annotations

import pytest

from mulligan.testing import damage, strikes
from mulligan.testing.power import __main__ as power


def test_no_promise_is_broken_by_a_power_cut(capsys: pytest.CaptureFixture[str]) -> None:
    if reason := power.missing("ext4"):
        pytest.skip(reason)
    status = power.main(["--cuts", "6", "--steps", "3", "--filesystem", "ext4"])
    assert status == 0, capsys.readouterr().out


@pytest.mark.parametrize("command", strikes.SCENARIOS)
def test_a_command_that_is_struck_at_any_call_loses_nothing(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if reason := strikes.missing():
        pytest.skip(reason)
    status = strikes.main(["--strikes", "2", "--command", command])
    assert status == 0, capsys.readouterr().out


def test_no_damage_ends_a_command_or_gives_wrong_files(capsys: pytest.CaptureFixture[str]) -> None:
    status = damage.main(["--rounds", "4"])
    assert status == 0, capsys.readouterr().out
