"""Printing that holds nobody up: a terminal that was stopped (Ctrl-S) must not stop a team."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from itertools import groupby

import click

MAX_QUEUED_CHARACTERS = 64 << 20
"""How many characters may wait for whoever reads them; later lines are counted, and lost."""

Line = tuple[str, bool]
"""What is to be printed, and whether as an error."""


class OutputQueue:
    """Prints lines in order, from a thread of its own; the last ones when it is left."""

    def __init__(self, most: int = MAX_QUEUED_CHARACTERS) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._lines: list[Line] = []
        self._size = self._lost = 0
        self._is_left = False
        self._thread = threading.Thread(target=self._run, name="mulligan-speaker", daemon=True)

    def __enter__(self) -> OutputQueue:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_left = True
            self._changed.notify()
        self._thread.join()

    def say(self, line: str, *, err: bool) -> None:
        """Have a line printed, soon."""
        with self._changed:
            if self._size + len(line) > self._most:
                self._lost += 1
                return
            self._lines.append((line, err))
            self._size += len(line)
            self._changed.notify()

    def _run(self) -> None:
        while lines := self._next():
            # As many as there are in one go, so that no agent prints faster than this.
            for err, some in groupby(lines, key=lambda line: line[1]):
                _print("\n".join(text for text, _ in some), err=err)

    def _next(self) -> list[Line]:
        """Wait for lines and return them; none when there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._is_left)
            lines, self._lines, self._size = self._lines, [], 0
            if self._lost:
                count = "1 line was" if self._lost == 1 else f"{self._lost:,} lines were"
                lines.append((f"… {count} not shown: nothing read the output.", True))
                self._lost = 0
            return lines


def _print(text: str, *, err: bool) -> None:
    with suppress(OSError):  # a terminal that was closed is no reason to stop
        try:
            click.echo(text, err=err)
        except UnicodeEncodeError:
            encoding = (sys.stderr if err else sys.stdout).encoding
            click.echo(text.encode(encoding, "replace").decode(encoding), err=err)
