"""Starting the helper, detached from the agent whose hook happened to be the first."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from mulligan.resident.place import make_directory

PASSED_ON = ("HOME", "PATH", "XDG_STATE_HOME", "LANG", "LC_ALL", "PYTHONPATH", "TMPDIR")
"""The variables that the helper gets. Each request brings those of its agent; keys and tokens of
the first agent are of no use to the helper."""


def start_helper(state: Path, variables: Mapping[str, str]) -> int:
    """Start a helper and return its process id; one that finds another at work ends at once."""
    directory = make_directory(state)
    kept = {name: variables[name] for name in PASSED_ON if name in variables}
    started = subprocess.Popen(
        [sys.executable, "-m", "mulligan.resident", str(state)],
        cwd=directory,
        env=kept,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A session of its own: the end of the agent and its terminal is not that of the helper.
        start_new_session=True,
    )
    # It is not waited for: the system collects it once this process is gone.
    started.returncode = 0
    return started.pid
