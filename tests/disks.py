"""Small disks, really full: file systems of their own, where mounting is permitted."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def mount(*arguments: str) -> None:
    """Mount something, or skip the test where that is not permitted."""
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")


@contextmanager
def disk_of(megabytes: int, place: Path) -> Iterator[Path]:
    """Make a file system of that size at a new place, for as long as the block lasts."""
    place.mkdir()
    mount("-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
