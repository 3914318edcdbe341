"""The progress line of long work on a terminal."""

from __future__ import annotations

import os
import sys

import click

from mulligan.cli.render.streams import terminal_columns
from mulligan.cli.render.terminal import LINE_START
from mulligan.cli.render.text import plural, shorten, size


class ProgressLine:
    """Shows one line that replaces the previous one; for terminals only.

    Spaces overwrite the old text, so that no escape sequence is needed.
    """

    def __init__(self) -> None:
        self._width = 0

    def show(self, text: str) -> None:
        """Show a text in place of the previous one."""
        # A line that wraps could not be overwritten; the last column makes some terminals wrap.
        text = shorten(text, terminal_columns() - 1)
        click.echo(f"{LINE_START}{text.ljust(self._width)}", err=True, nl=False)
        self._width = len(text)

    def read(self, files: int, count: int) -> None:
        """Show how many files and bytes a capture has read."""
        self.show(f"reading files: {plural(files, 'file')}, {size(count)}")

    def clear(self) -> None:
        """Clear the line, so that something else can be printed."""
        if self._width:
            click.echo(f"{LINE_START}{' ' * self._width}{LINE_START}", err=True, nl=False)
            self._width = 0


def can_show_progress() -> bool:
    """Whether standard error is a terminal on which a line can be overwritten."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
