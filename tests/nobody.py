"""Runs a piece of a test in a process without root's privileges, so that permissions count."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def place_of_nobody() -> Iterator[Path]:
    """Yield a directory that belongs to whoever :func:`as_nobody` runs as."""
    place = Path(tempfile.mkdtemp(prefix="mulligan-test-"))
    try:
        if os.geteuid() == 0:
            os.chown(place, NOBODY, NOBODY)
        yield place
    finally:
        for directory, _, _ in os.walk(place):
            os.chmod(directory, 0o700)
        shutil.rmtree(place)


def as_nobody(body: Callable[[], None]) -> None:
    """Run a function in a child without privileges; what it raises fails the test."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        status = 1
        try:
            _drop_privileges()
            body()
            status = 0
        except BaseException:
            os.write(writing, traceback.format_exc().encode()[-60_000:])
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        trace = stream.read().decode()
    _, status = os.waitpid(pid, 0)
    assert status == 0, trace


def _drop_privileges() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
