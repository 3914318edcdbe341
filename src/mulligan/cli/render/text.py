"""Printing: JSON for programs, columns and short values for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from mulligan.cli.render.streams import broken, terminal_columns, wrap
from mulligan.cli.render.terminal import encoding_of, style
from mulligan.views import encoding
from mulligan.views.encoding import clean as clean

if TYPE_CHECKING:
    from mulligan import Point

SHORT_ID = 12
SHORT_VALUE = 60
GAP = "  "
MIN_WRAPPED_WIDTH = 20

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_SIZES = ("bytes", "KB", "MB", "GB", "TB")


class Cell(msgspec.Struct, frozen=True):
    """A piece of text with a colour and a weight, which show on a terminal only."""

    text: str
    colour: str | None = None
    bold: bool = False
    dim: bool = False

    def styled(self, width: int = 0, limit: int | None = None) -> str:
        """Return the text padded to a width and cut at a limit, with its colour."""
        text = self.text if limit is None else shorten(self.text, limit)
        dim = self.dim or None
        if not self.text:
            return " " * width
        return style(text.ljust(width), fg=self.colour, bold=self.bold or None, dim=dim)


def to_json(value: Any, indent: int | None = 2) -> str:
    """Return a value as JSON text that the terminal's encoding can show."""
    # Escapes are the same JSON value, while a replacement character would not be.
    ascii_only = encoding_of(sys.stdout).lower().replace("-", "") != "utf8"
    return encoding.to_json(value, indent, ascii_only=ascii_only)


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print a value as JSON."""
    click.echo(to_json(value, indent))


def shorten(text: str, limit: int = SHORT_VALUE) -> str:
    """Return text of at most ``limit`` characters, with an ellipsis where it was cut."""
    # What is left may end with the ellipsis of a part that was cut before.
    return text if len(text) <= limit else text[: max(limit - 1, 0)].rstrip("…") + "…"


def short(value: Any, limit: int = SHORT_VALUE) -> str:
    """Return a value as one short line of JSON."""
    return shorten(clean(encoding.to_json(value, None)), limit)


def columns(
    rows: Sequence[Sequence[Cell]], *, below: bool = False, width: int | None = None
) -> Iterator[str]:
    """Yield the rows as aligned lines; on a terminal none is wider than it.

    A last column that does not fit is cut, or, with ``below``, written in full on lines below.
    ``width`` counts where there is no terminal.
    """
    count = max((len(row) for row in rows), default=0)
    widths = [max((len(r[i].text) for r in rows if i < len(r)), default=0) for i in range(count)]
    width = terminal_width() or width
    for row in rows:
        yield from _lines(row, widths, width) if below else [_line(row, widths, width)]


def terminal_width() -> int | None:
    """Return the width of standard output in columns; None if it is not a terminal."""
    if not sys.stdout.isatty():
        return None
    return terminal_columns()


def echo_columns(
    rows: Sequence[Sequence[Cell]], *, below: bool = False, width: int | None = None
) -> None:
    """Print the rows as aligned lines; see :func:`columns`."""
    for line in columns(rows, below=below, width=width):
        click.echo(line)


def echo_broken(text: str, colour: str | None = None, *, dim: bool = False) -> None:
    """Print a sentence in lines of the terminal's width, or of 80 columns, broken between words."""
    for line in broken(text).split("\n"):
        click.echo(Cell(line, colour, dim=dim).styled())


def fields(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names with their values; empty ones are left out."""
    echo_columns([(Cell(name, dim=True), Cell(clean(value))) for name, value in pairs if value])


def ago(moment: datetime, now: datetime | None = None) -> str:
    """Return the age of a moment in its largest unit."""
    seconds = int(((now or datetime.now(UTC)) - moment).total_seconds())
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return "now"


def local(moment: datetime, now: datetime | None = None) -> str:
    """Return a moment in local time, with the date unless it is today's."""
    here, today = moment.astimezone(), (now or datetime.now(UTC)).astimezone()
    return here.strftime("%H:%M:%S" if here.date() == today.date() else "%Y-%m-%d %H:%M")


def size(count: int) -> str:
    """Return a number of bytes for people."""
    value = float(count)
    if count == 1:
        return "1 byte"
    for unit in _SIZES:
        if value < 1000 or unit == _SIZES[-1]:
            break
        value /= 1000
    return f"{value:.0f} {unit}" if value >= 10 or unit == "bytes" else f"{value:.1f} {unit}"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Return a number with its noun."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def place(point: Point) -> str:
    """Return a point as text."""
    return f"{point.session} #{point.seq}"


def verdict_cell(verdict: str | None) -> Cell:
    """Return the verdict on a checkpoint as a cell."""
    return Cell(verdict or "", {"good": "green", "bad": "red"}.get(verdict or ""), bold=True)


def _lines(row: Sequence[Cell], widths: Sequence[int], width: int | None) -> Iterator[str]:
    """Yield a row as one line, or with its last column below if that does not fit."""
    *first, last = row
    if width is None or sum(widths[:-1]) + len(GAP) * len(first) + len(last.text) <= width:
        yield _line(row, widths, width)
        return
    yield _line(first, widths[:-1], width)
    indent = len(GAP) * 2
    for text in wrap(last.text, max(width - indent, MIN_WRAPPED_WIDTH)):
        yield " " * indent + Cell(text, last.colour, last.bold, last.dim).styled()


def _line(row: Sequence[Cell], widths: Sequence[int], width: int | None) -> str:
    filled = max((i for i, cell in enumerate(row) if cell.text), default=0)
    *first, last = row[: filled + 1]
    styled = [cell.styled(widths[i]) for i, cell in enumerate(first)]
    taken = sum(widths[: len(first)]) + len(GAP) * len(first)
    # Only the last column is cut: the others hold ids and names that must stay complete.
    limit = None if width is None else max(width - taken, 8)
    return GAP.join([*styled, last.styled(limit=limit)]).rstrip()
