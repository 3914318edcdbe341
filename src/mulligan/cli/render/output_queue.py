"""Non-blocking output: a terminal that was stopped (Ctrl-S) must not stop a team."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from itertools import groupby

import click

MAX_QUEUED_CHARACTERS = 64 << 20
"""How many characters may wait to be printed; further lines are counted and dropped."""

Line = tuple[str, bool]
"""A text to print, and whether it goes to standard error."""


class OutputQueue:
    """Prints lines in order from its own thread; leaving the block prints the last ones."""

    def __init__(self, most: int = MAX_QUEUED_CHARACTERS) -> None:
        self._most = most
        # Held only to move lines, never to print them.
        self._changed = threading.Condition()
        self._lines: list[Line] = []
        self._size = self._lost = 0
        self._is_left = False
        # A daemon: if it is stuck in a stopped terminal, it must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="mulligan-output", daemon=True)

    def __enter__(self) -> OutputQueue:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_left = True
            self._changed.notify()
        # Waits for the terminal, but only after the team has ended.
        self._thread.join()

    def say(self, line: str, *, err: bool) -> None:
        """Queue a line; never blocks on the terminal."""
        with self._changed:
            # Drop instead of wait: a caller that waited here would hang with the terminal.
            if self._size + len(line) > self._most:
                self._lost += 1
                return
            self._lines.append((line, err))
            self._size += len(line)
            self._changed.notify()

    def _run(self) -> None:
        while lines := self._next():
            # All waiting lines in one write, so that printing keeps up with any agent.
            for err, some in groupby(lines, key=lambda line: line[1]):
                _print("\n".join(text for text, _ in some), err=err)

    def _next(self) -> list[Line]:
        """Wait for lines and return them; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._is_left)
            # Taken under the lock, printed outside it: a blocked print must not block ``say``.
            lines, self._lines, self._size = self._lines, [], 0
            if self._lost:
                count = "1 line was" if self._lost == 1 else f"{self._lost:,} lines were"
                lines.append((f"… {count} not shown: nothing read the output.", True))
                self._lost = 0
            return lines


def _print(text: str, *, err: bool) -> None:
    with suppress(OSError):  # a closed terminal must not end the command
        try:
            click.echo(text, err=err)
        except UnicodeEncodeError:
            encoding = (sys.stderr if err else sys.stdout).encoding
            click.echo(text.encode(encoding, "replace").decode(encoding), err=err)
