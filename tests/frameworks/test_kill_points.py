"""Programs that are killed directly after a transaction repeat nothing that one has recorded.

The programs are those of the tests of each framework; what they do outside is in ``log.txt``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.frameworks.killed import HANG_SECONDS, ROOT, Program
from tests.frameworks.needed import needed

HERE = Path(__file__).parent
RUNNER = HERE / "kill_nth.py"

PROGRAMS = [
    ("agents", "openai_agents"),
    ("pydantic_ai", "pydantic_ai"),
    ("google.adk", "google_adk"),
]


@pytest.mark.parametrize("nth", [3, 5, 8])
@pytest.mark.parametrize(("package", "directory"), PROGRAMS)
def test_nothing_that_was_recorded_is_repeated(
    tmp_path: Path, package: str, directory: str, nth: int
) -> None:
    needed(package)
    program = HERE / directory / "program.py"
    (tmp_path / "go").touch()
    words = [sys.executable, str(RUNNER), str(nth), str(program), str(tmp_path), "durable"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run(words, env=env, timeout=HANG_SECONDS, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert Program(program, tmp_path, "durable").output().startswith("done")
    lines = Counter((tmp_path / "log.txt").read_text().splitlines())
    assert {"charge 1", "charge 2", "wait"} <= {*lines}
    # At most the one call that the process died in, which may not have happened.
    assert sum(count - 1 for count in lines.values()) <= 1
    assert lines["charge 1"] == lines["charge 2"] == 1
