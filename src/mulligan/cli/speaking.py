"""Printing that holds nobody up: a terminal that was stopped (Ctrl-S) must not stop a team."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress

import click

MOST = 10_000
"""How many lines may wait for whoever reads them; later ones are counted, and lost."""


class Speaker:
    """Prints lines in order, from a thread of its own; the last ones when it is left."""

    def __init__(self) -> None:
        self._lines: queue.Queue[tuple[str, bool] | None] = queue.Queue(MOST)
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name="mulligan-speaker", daemon=True)

    def __enter__(self) -> Speaker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.put(None)
        self._thread.join()

    def say(self, line: str, *, err: bool) -> None:
        """Have a line printed, soon."""
        try:
            self._lines.put_nowait((line, err))
        except queue.Full:
            self._lost += 1

    def _run(self) -> None:
        while (item := self._lines.get()) is not None:
            lost, self._lost = self._lost, 0
            if lost:
                self._print(f"… {lost} lines were not shown: nobody read them.", err=True)
            self._print(item[0], err=item[1])

    def _print(self, line: str, *, err: bool) -> None:
        with suppress(OSError):  # a terminal that was closed is no reason to stop
            click.echo(line, err=err)
