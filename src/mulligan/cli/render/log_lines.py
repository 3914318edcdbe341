"""The lines of a log: within the terminal's width, with labels in full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from mulligan.cli.render.text import GAP, Cell

AGE, FILES = 2, 6
"""The columns that a narrow terminal drops: first the files, then the age."""

INDENT = 14
"""The indent of a label that does not fit on its line: below the sequence number."""

MIN_NOTE_WIDTH = 24
"""The least width a note is cut to; with less room, it gets its own line."""


class LogRow(msgspec.Struct, frozen=True):
    """One entry: its columns, its label, and the note or the event that follows."""

    cells: tuple[Cell, ...]
    label: Cell
    note: Cell


def fitted(rows: Sequence[LogRow], width: int | None) -> Iterator[str]:
    """Yield the lines of a log; without a width everything is on one line."""
    if not rows:
        return
    widths = [max(len(row.cells[i].text) for row in rows) for i in range(len(rows[0].cells))]
    kept = [i for i in range(len(widths)) if widths[i]]
    for column in (FILES, AGE):
        if width is not None and column in kept and _total(kept, widths) > width:
            kept.remove(column)
    for row in rows:
        head = GAP.join(row.cells[i].styled(widths[i]) for i in kept)
        yield from _lines(row, head, _total(kept, widths), width)


def _lines(row: LogRow, head: str, taken: int, width: int | None) -> Iterator[str]:
    if not row.label.text and not row.note.text:
        yield head.rstrip()
    elif width is None:
        yield f"{head}{GAP}{_words(row, None)}".rstrip()
    elif _needed(row) <= width - taken - len(GAP):
        yield f"{head}{GAP}{_words(row, width - taken - len(GAP))}"
    else:
        yield head.rstrip()
        yield from _below(row, width - INDENT)


def _below(row: LogRow, room: int) -> Iterator[str]:
    """Yield label and note as lines below their columns; one if they fit, otherwise two."""
    apart = [LogRow((), row.label, Cell("")), LogRow((), Cell(""), row.note)]
    parts = [row] if _needed(row) <= room else apart
    for part in parts:
        if part.label.text or part.note.text:
            yield f"{' ' * INDENT}{_words(part, room)}"


def _needed(row: LogRow) -> int:
    """Return the least width of label and note: the label in full, the note cut."""
    parts = [len(row.label.text), min(len(row.note.text), MIN_NOTE_WIDTH)]
    return sum(parts) + len(GAP) * all(parts)


def _words(row: LogRow, room: int | None) -> str:
    """Return label and note; only the note is cut to the width."""
    if not row.label.text:
        return row.note.styled(limit=room)
    if not row.note.text:
        return row.label.styled()
    left = None if room is None else room - len(row.label.text) - len(GAP)
    return f"{row.label.styled()}{GAP}{row.note.styled(limit=left)}"


def _total(kept: Sequence[int], widths: Sequence[int]) -> int:
    return sum(widths[i] for i in kept) + len(GAP) * (len(kept) - 1)
