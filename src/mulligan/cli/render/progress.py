"""The line that shows on a terminal how far a long capture is."""

from __future__ import annotations

import click

from mulligan.cli.render.terminal import CLEAR_LINE, LINE_START


class ProgressLine:
    """Is told how many files were read, and shows it; for terminals only."""

    def __init__(self) -> None:
        self._is_shown = False

    def __call__(self, count: int) -> None:
        """Show the number in place of the one before."""
        click.echo(f"{LINE_START}reading files: {count:,} ", err=True, nl=False)
        self._is_shown = True

    def clear(self) -> None:
        """Take the line away, so that something else can be printed."""
        if self._is_shown:
            click.echo(CLEAR_LINE, err=True, nl=False)
            self._is_shown = False
