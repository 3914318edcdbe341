"""Programs that are killed in the middle and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]

HANG_SECONDS = 120
"""Only against hanging: nothing is judged by it."""


class Program:
    """A Python program in a process group of its own."""

    def __init__(self, file: Path, *arguments: object, env: dict[str, str] | None = None) -> None:
        words = [sys.executable, str(file), *map(str, arguments)]
        inherited = {**os.environ, "PYTHONPATH": str(ROOT)} if env is None else env
        self.process = subprocess.Popen(
            words, env=inherited, start_new_session=True, stdout=subprocess.PIPE, text=True
        )

    def kill_when(self, there: Path) -> None:
        """Kill the whole group as soon as a file is there."""
        until = time.monotonic() + HANG_SECONDS
        while not there.exists():
            assert self.process.poll() is None, f"it ended: {self.process.communicate()[0]}"
            assert time.monotonic() < until, f"no {there.name}"
            time.sleep(0.01)
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        assert self.process.returncode == -signal.SIGKILL

    def output(self) -> str:
        """Wait for the end, and return what was printed."""
        printed, _ = self.process.communicate(timeout=HANG_SECONDS)
        assert self.process.returncode == 0, printed
        return printed
