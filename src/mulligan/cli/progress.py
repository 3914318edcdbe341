"""The line that shows on a terminal how far a long capture is."""

from __future__ import annotations

import click


class ProgressLine:
    """Is told how many files were read, and shows it; for terminals only."""

    def __init__(self) -> None:
        self._is_shown = False

    def __call__(self, count: int) -> None:
        """Show the number in place of the one before."""
        click.echo(f"\rreading files: {count:,} ", err=True, nl=False)
        self._is_shown = True

    def clear(self) -> None:
        """Take the line away, so that something else can be printed."""
        if self._is_shown:
            click.echo("\r\x1b[K", err=True, nl=False, color=True)
            self._is_shown = False
