"""All output to the terminal passes here, where control characters are escaped.

Names, notes, paths and values may hold characters that control a terminal: escape sequences that
set its title or clear it, or marks that turn the direction of text. While a command runs, standard
output and error are replaced by streams that write such characters as ``\\u001b``, wherever the
text comes from. In JSON that is the same value. Our own colours are marked by a random word that
outside text cannot guess, and become escape sequences only here.

The output of agents passes unchanged; see :func:`untouched`.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import click

# Random per process, so that text from outside cannot contain the mark of our own colours.
_WORD = os.urandom(8).hex()
_MARK = f"\ufdd0{_WORD}"
_END = "\ufdd1"

_RAW, _RAW_END = "raw", "end"
_KIND = 3
"""A mark begins with its kind, of this many letters; a control sequence may follow."""

_UNSAFE = (
    r"\r(?!\n)|"  # a Windows line ending is harmless
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # C0 but tab and line feed, DEL, C1
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, direction
    "\ud800-\udfff\ufdd0-\ufdef\U000e0000-\U000e007f]"  # no characters, tags
)

LINE_START = f"{_MARK}seq\r{_END}"
"""Goes back to the start of the line."""

CLEAR_SCREEN = f"{_MARK}scr[2J[1;1H{_END}"
"""Clears the screen; empty where escape sequences are unwanted."""

PLAIN = {"…": "...", "→": "->", "─": "-", "│": "|", "├": "+", "└": "+", "✓": "ok", "✗": "x"}
"""Replacements for our own symbols where they cannot be encoded."""


def style(
    text: str, fg: str | None = None, *, bold: bool | None = None, dim: bool | None = None
) -> str:
    """Return text in a colour and a weight, which show on a terminal only."""
    codes = click.style("", fg=fg, bold=bold, dim=dim, reset=False).replace("\x1b", "")
    return f"{_MARK}sgr{codes}{_END}{text}{_MARK}sgr[0m{_END}" if codes else text


def untouched(text: str) -> str:
    """Return text that passes unchanged."""
    return f"{_MARK}{_RAW}{_END}{text}{_MARK}{_RAW_END}{_END}"


def visible(text: str) -> str:
    """Return text with all characters that control a terminal escaped."""
    # Printable characters are all safe. Compiling the pattern takes longer than many a command.
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return re.sub(_UNSAFE, _written_out, text)


def encodable(text: str, encoding: str | None) -> str:
    """Return text with all characters escaped that an encoding lacks."""
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return "".join(_encodable(character, encoding or "utf-8") for character in text)
    return text


def _encodable(character: str, encoding: str) -> str:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return PLAIN.get(character) or _code_units(character)
    return character


def _written_out(found: re.Match[str]) -> str:
    return _code_units(found[0])


def _code_units(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


class Visible(io.TextIOBase):
    """A stream that escapes control characters before another one, except our own colours."""

    def __init__(self, behind: TextIO, *, colours: bool) -> None:
        self.behind = behind
        self._colours = colours

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Always UTF-8: any text is accepted, and what cannot be encoded is escaped.

        Click would replace a stream that reports ASCII with its own, which bypasses this one.
        """
        return "utf-8"

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """How the underlying stream handles characters that it cannot encode."""
        return self.behind.errors

    @property
    def buffer(self) -> io.BufferedIOBase:
        """The stream for bytes, which are data and pass unchanged."""
        return self.behind.buffer  # type: ignore[return-value]

    def write(self, text: str) -> int:
        """Write text; what was marked by :func:`untouched` passes."""
        shown = self._shown(text) if _MARK in text else visible(text)
        self.behind.write(encodable(shown, self.behind.encoding))
        return len(text)

    def _shown(self, text: str) -> str:
        first, *marked = text.split(_MARK)
        shown, is_raw = [visible(first)], False
        for part in marked:
            mark, _, following = part.partition(_END)
            kind, codes = mark[:_KIND], mark[_KIND:]
            if kind in (_RAW, _RAW_END):
                is_raw = kind == _RAW
            elif not is_raw:
                shown.append(self._sequence(kind, codes))
            shown.append(following if is_raw else visible(following))
        return "".join(shown)

    def _sequence(self, kind: str, codes: str) -> str:
        # Going back to the start of a line is no escape sequence, and needed on any terminal.
        if kind != "seq" and not self._colours:
            return ""
        return codes.replace("[", "\x1b[")

    def flush(self) -> None:
        """Flush the underlying stream."""
        # The finalizer calls this too, perhaps after the underlying stream was closed.
        if not self.behind.closed:
            self.behind.flush()

    def isatty(self) -> bool:
        """Whether it leads to a terminal."""
        return self.behind.isatty()

    def fileno(self) -> int:
        """Return the underlying descriptor, for child processes."""
        return self.behind.fileno()

    def writable(self) -> bool:
        """Whether it can be written to."""
        return True


def print_exactly(value: str | bytes) -> None:
    """Print a value byte for byte for programs; on a terminal, control characters are escaped."""
    if isinstance(value, str) and not sys.stdout.isatty():
        value = value.encode("utf-8", "surrogateescape")
    click.echo(value)


def encoding_of(stream: TextIO) -> str:
    """Return the encoding that a stream writes."""
    shown: TextIO = getattr(stream, "behind", stream)
    return shown.encoding or "utf-8"


@contextmanager
def guarded(*, colours: bool) -> Iterator[None]:
    """Escape control characters in everything printed inside; colours only on terminals."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (
        Visible(stream, colours=colours and stream.isatty()) for stream in before
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
