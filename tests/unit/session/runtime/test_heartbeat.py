"""Heartbeats go on after an error that passes."""

from __future__ import annotations

import threading
from pathlib import Path

from mulligan.session.runtime.heartbeat import HeartbeatWriter

PATIENCE = 60


class Noted(HeartbeatWriter):
    """Tells of beats that failed and of beats that did not."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, lambda: None, interval=0.001)
        self.failed, self.beaten = threading.Event(), threading.Event()

    def beat(self) -> None:
        try:
            super().beat()
        except OSError:
            self.failed.set()
            raise
        self.beaten.set()


def test_a_beat_that_fails_is_followed_by_others(tmp_path: Path) -> None:
    heart = Noted(tmp_path / "beat")
    heart.start()
    try:
        aside = tmp_path / "aside"
        aside.mkdir()
        heart._file = aside  # a directory: every beat fails, and the file's own one is still there
        assert heart.failed.wait(PATIENCE)
        heart.beaten.clear()
        heart._file = tmp_path / "again"
        assert heart.beaten.wait(PATIENCE)
    finally:
        heart.stop()
    assert (tmp_path / "again").exists()


def test_a_heart_whose_directory_is_gone_beats_no_more(tmp_path: Path) -> None:
    heart = Noted(tmp_path / "gone" / "beat")
    (tmp_path / "gone").mkdir()
    heart.start()
    heart._file = tmp_path / "nowhere" / "beat"
    assert heart.failed.wait(PATIENCE)
    heart._threads[0].join(PATIENCE)
    assert not heart._threads[0].is_alive()
    heart.stop()
