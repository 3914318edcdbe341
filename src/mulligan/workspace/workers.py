"""Shared helpers for starting worker processes, to use more than one core."""

from __future__ import annotations

import os
import re
import sys
from typing import IO

_PYTHON = re.compile(r"python[\d.]*t?")
"""Names of Python interpreters; a program that embeds one cannot be started as a worker."""


def is_possible() -> bool:
    """Whether there is an interpreter to run a worker with."""
    return bool(sys.executable and _PYTHON.fullmatch(os.path.basename(sys.executable)))


def processors() -> int:
    """Return how many of our processes can run at once."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def nameless_file() -> IO[bytes]:
    """Return a file that no other process can find; a pipe could block the caller."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("mulligan-request"), "w+b")
    from tempfile import TemporaryFile

    return TemporaryFile()
