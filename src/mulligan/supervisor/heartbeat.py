"""Reading the heartbeat files of agents, about once a second and at little cost."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from mulligan.owner import make_directory
from mulligan.session.runtime.heartbeat import AgentStep, read_step
from mulligan.supervisor.stimuli import Beat, Progressed

DIRECTORY = "beats"


class HeartbeatReader:
    """The heartbeat file of one process, and what was seen in it last."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.has_beaten = False
        self._seen = 0
        self._step = AgentStep()

    def look(self, agent: str) -> Iterator[Beat | Progressed]:
        """Yield the stimuli since the last call."""
        seen, step = read_step(self.file)
        # Compared for equality, not order: the clock of the file system may be set back.
        if seen == self._seen:
            return
        self._seen, self.has_beaten = seen, True
        yield Beat(agent)
        if step != self._step:
            self._step = step
            yield Progressed(agent, step.deadline)

    def forget(self) -> None:
        """Remove the file; its process is gone."""
        self._remove()

    def begin(self) -> None:
        """Remove the file before a start; if it stays, its present content counts as old."""
        if not self._remove():
            self._seen, self._step = read_step(self.file)

    def _remove(self) -> bool:
        """Remove the file if possible; one that stays in tmp/ does no harm."""
        try:
            self.file.unlink(missing_ok=True)
        except OSError:
            return False
        return True


def heartbeat_reader(store: str, session: str, agent: str, epoch: int) -> HeartbeatReader:
    """Return the heartbeat of a process that is about to be started."""
    directory = Path(store) / "tmp" / DIRECTORY
    for made in (directory.parent, directory):  # tmp/ may be deleted at any time
        make_directory(made)
    # A name may contain anything, for example a slash, and each process needs its own file.
    name = hashlib.blake2s(f"{session}\0{agent}".encode(), digest_size=8).hexdigest()
    beats = HeartbeatReader(directory / f"{name}-{epoch}")
    beats.begin()
    return beats
