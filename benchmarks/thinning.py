"""Who thins a history: captures with a time of their own, then one clean-up by the same rules."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from benchmarks.daily import WorkClock
from benchmarks.keepers import Borg, Keeper, MulliganScan, Restic

RULES = ("--keep-hourly=24", "--keep-daily=7")
"""The default policy of routine checkpoints; all of them also keep the last three."""


class TimedKeeper(Keeper):
    """A keeper whose captures can be given a time."""

    def capture_at(self, moment: datetime) -> None:
        """Capture the tree as if it were that time."""
        raise NotImplementedError

    def thin(self) -> None:
        """Remove what the rules do not keep, and give its space back."""
        raise NotImplementedError


class TimedMulligan(MulliganScan, TimedKeeper):
    """A session of ours with another clock."""

    name = "mulligan: prune"

    def __init__(self, tree: Path, directory: Path) -> None:
        self._clock = WorkClock()
        super().__init__(tree, directory, self._clock)

    def capture_at(self, moment: datetime) -> None:
        self._clock.skip((moment - self._clock.now()).total_seconds())
        self.capture()

    def thin(self) -> None:
        from mulligan.store import engine_of
        from mulligan.upkeep.lock import upkeep_lock
        from mulligan.upkeep.retention.policy import Policy
        from mulligan.upkeep.retention.prune import Pruner

        engine = engine_of(self.store)
        with upkeep_lock(engine, wait=True):
            Pruner(engine, Policy()).run()


class TimedRestic(Restic, TimedKeeper):
    """restic, with forget and prune."""

    name = "restic: forget --prune"

    def capture_at(self, moment: datetime) -> None:
        self._restic("backup", "--time", f"{moment:%Y-%m-%d %H:%M:%S}", ".")

    def thin(self) -> None:
        self._restic("forget", "--keep-last=3", *RULES, "--prune")


class TimedBorg(Borg, TimedKeeper):
    """borg, with prune and compact."""

    name = "borg: prune, compact"

    def capture_at(self, moment: datetime) -> None:
        self._captures += 1
        when = f"--timestamp={moment:%Y-%m-%dT%H:%M:%S}"
        self._borg("create", "--compression=zstd,3", when, self._newest, ".", cwd=self.tree)

    def thin(self) -> None:
        self._borg("prune", "--keep-last=3", *RULES, str(self._repository), cwd=self.tree)
        self._borg("compact", "--threshold=0", str(self._repository), cwd=self.tree)
