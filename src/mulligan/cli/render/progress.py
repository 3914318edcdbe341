"""The line that shows on a terminal how far long work is."""

from __future__ import annotations

import os
import sys

import click

from mulligan.cli.render.terminal import CLEAR_LINE, LINE_START

DEFAULT_WIDTH = 80
"""Columns of a terminal that does not say how many it has."""


class ProgressLine:
    """Shows how far long work is, in place of what it showed before; for terminals only."""

    def __init__(self) -> None:
        self._is_shown = False

    def __call__(self, count: int) -> None:
        """Show how many files a capture has read."""
        # The number only grows, so it covers the one before.
        click.echo(f"{LINE_START}reading files: {count:,} ", err=True, nl=False)
        self._is_shown = True

    def show(self, text: str) -> None:
        """Show what is being done."""
        width = (os.get_terminal_size(sys.stderr.fileno()).columns or DEFAULT_WIDTH) - 1
        click.echo(f"{CLEAR_LINE}{text[:width]}", err=True, nl=False)
        self._is_shown = True

    def clear(self) -> None:
        """Take the line away, so that something else can be printed."""
        if self._is_shown:
            click.echo(CLEAR_LINE, err=True, nl=False)
            self._is_shown = False
