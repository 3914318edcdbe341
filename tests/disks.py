"""Small disks, really full: file systems of their own, where mounting is permitted."""

from __future__ import annotations

import shutil
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


@contextmanager
def cloning_disk(kind: str, place: Path) -> Iterator[Path]:
    """A filesystem of its own that can clone files: ``btrfs`` or ``xfs``."""
    image, disk = place / f"{kind}.image", place / kind
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(400 << 20)
    if shutil.which(f"mkfs.{kind}") is None:
        pytest.skip("there is no program here that makes such a filesystem")
    for command in ([f"mkfs.{kind}", "-q", image], ["mount", "-o", "loop", image, disk]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"it cannot be made here: {done.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
