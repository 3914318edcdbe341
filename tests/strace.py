"""Real errors of system calls, made by strace in a child process."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

STRACE = shutil.which("strace")


@functools.cache
def can_inject() -> bool:
    """Whether strace is here and allowed to trace, which some containers forbid."""
    if STRACE is None:
        return False
    trial = [STRACE, "-f", "-o", "/dev/null", "-e", "inject=getpid:error=EIO", "true"]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


def failing(command: Sequence[str], fault: str, *, only: Path | None = None) -> list[str]:
    """Return a command in which system calls fail, on one file only if that is named.

    ``fault`` is as strace has it: ``pwrite64:error=EIO:when=2``.
    """
    if not can_inject():
        pytest.skip("strace is missing or may not trace")
    assert STRACE is not None
    where = [] if only is None else ["-P", str(only)]
    return [STRACE, "-f", "-o", "/dev/null", *where, "-e", f"inject={fault}", *command]


def failing_python(code: str, fault: str, *, only: Path | None = None) -> list[str]:
    """Return the same for some Python."""
    return failing([sys.executable, "-c", code], fault, only=only)
