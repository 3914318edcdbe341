"""The line that shows on a terminal how far long work is."""

from __future__ import annotations

import os
import shutil
import sys

import click

from mulligan.cli.render.terminal import LINE_START
from mulligan.cli.render.text import plural, shorten, size


class ProgressLine:
    """Shows one line in place of the one before; for terminals only.

    It is overwritten with spaces, so that no escape sequence is needed.
    """

    def __init__(self) -> None:
        self._width = 0

    def show(self, text: str) -> None:
        """Show a text in place of the one before."""
        text = shorten(text, shutil.get_terminal_size().columns - 1)
        click.echo(f"{LINE_START}{text.ljust(self._width)}", err=True, nl=False)
        self._width = len(text)

    def read(self, files: int, count: int) -> None:
        """Show how many files, and bytes of files, a capture has read."""
        self.show(f"reading files: {plural(files, 'file')}, {size(count)}")

    def clear(self) -> None:
        """Take the line away, so that something else can be printed."""
        if self._width:
            click.echo(f"{LINE_START}{' ' * self._width}{LINE_START}", err=True, nl=False)
            self._width = 0


def can_show_progress() -> bool:
    """Whether standard error is a terminal on which a line can be overwritten."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
