"""A short chaos run; ``make crash`` runs a long one."""

from __future__ import annotations

from mulligan.testing.chaos import main


def test_a_team_that_is_struck_again_and_again_does_everything_once(capsys):
    failed = main(["--tasks", "120", "--blows", "12", "--pace", "0.06", "--seed", "7"])
    said = capsys.readouterr().out
    assert not failed, said
    assert "every task completed once" in said
