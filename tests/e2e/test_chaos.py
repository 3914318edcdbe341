"""A short chaos run; ``make crash`` runs a long one."""

from __future__ import annotations

from pathlib import Path

from mulligan.testing.chaos import Chaos, main


def test_a_team_that_is_killed_and_stopped_at_random_does_everything_once(capsys):
    failed = main(["--tasks", "120", "--signals", "12", "--pace", "0.06", "--seed", "7"])
    said = capsys.readouterr().out
    assert not failed, said
    assert "every task completed once" in said


class KilledAtOnce(Chaos):
    """A run whose first supervisor is killed before it can do anything."""

    def _start(self, *arguments: str) -> None:
        super()._start(*arguments)
        if not self.sent:
            self._kill_supervisor()


def test_a_team_whose_supervisor_dies_before_it_began_is_started_again(tmp_path: Path):
    chaos = KilledAtOnce(tmp_path, seed=7, tasks=5, signals=0, pace=0.01)
    assert chaos.run() == []
    assert chaos.sent == {"supervisors killed": 1}
