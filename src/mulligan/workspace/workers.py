"""What all share who start programs beside the caller, to use more than one core."""

from __future__ import annotations

import os
import re
import sys
from typing import IO

_PYTHON = re.compile(r"python[\d.]*t?")
"""What an interpreter is called; of a program that embeds one nobody knows what it would do."""


def is_possible() -> bool:
    """Whether there is an interpreter to run a program with."""
    return bool(sys.executable and _PYTHON.fullmatch(os.path.basename(sys.executable)))


def processors() -> int:
    """Return how many processes of ours can run at once."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def nameless_file() -> IO[bytes]:
    """Return a file that no other process can find; a pipe would make the caller wait."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("mulligan-request"), "w+b")
    from tempfile import TemporaryFile

    return TemporaryFile()
