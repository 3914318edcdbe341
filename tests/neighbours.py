"""Processes that are busy in a workspace while it is captured."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def neighbour(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run Python code beside the test until the test is done with it, at the latest.

    It has ``sys.argv[1:]``, says "ready" when its work has begun, and must not end by itself.
    """
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
            assert process.poll() is None, "it has ended by itself"
        finally:
            process.kill()
