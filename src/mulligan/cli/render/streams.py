"""The standard streams: a command completes its work whether its output is read or not.

``mulligan restore X | head -1`` closes the pipe after one line. All output of commands passes
through :class:`Stream`, which drops output that cannot be written. Only a command that does
nothing but print (:func:`stop_when_closed`) ends there.
"""

from __future__ import annotations

import errno
import io
import os
import sys

TYPE_CHECKING = False  # ``typing`` is slow to import, and the help does without it

if TYPE_CHECKING:
    from typing import TextIO

    from _typeshed import ReadableBuffer

STDOUT, STDERR = 1, 2
DEFAULT_COLUMNS = 80


def terminal_columns() -> int:
    """Return the width of the terminal, as ``shutil.get_terminal_size`` does: it imports slowly."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(STDOUT).columns or DEFAULT_COLUMNS
    except OSError:  # closed, or no terminal
        return DEFAULT_COLUMNS


def wrapped(text: str, indent: int) -> str:
    """Return text for a terminal on stderr, broken between words; its first line is indented."""
    if not sys.stderr.isatty():
        return text
    first, *others = text.split("\n")
    lines = [_wrapped_line(" " * indent + first, indent)[indent:]]
    return "\n".join(lines + [_wrapped_line(line, indent) for line in others])


def broken(text: str, indent: int = 2) -> str:
    """Return text for standard output, broken between words; 80 columns where it is a pipe.

    Words stay whole: paths and names can be copied.
    """
    return "\n".join(_wrapped_line(line, indent) for line in text.split("\n"))


def _wrapped_line(line: str, indent: int) -> str:
    return "\n".join(wrap(line, terminal_columns(), indent))


def wrap(line: str, width: int, indent: int = 0) -> list[str]:
    """Return a line in lines of a width, broken between words, the later ones indented.

    Words stay whole, however long, and so do commands in backticks that fit into a line, to be
    copied. The standard library's ``textwrap`` imports slowly.
    """
    text = line.lstrip(" ")
    lines = [line[: len(line) - len(text)]]
    for word in _words(text, width - indent):
        known = lines[-1]
        if known.strip() and len(known) + 1 + len(word) > width:
            lines.append(" " * indent + word)
        else:
            lines[-1] = f"{known} {word}" if known.strip() else known + word
    return lines


def _words(text: str, width: int) -> list[str]:
    words: list[str] = []
    for word in text.split(" "):
        is_inside = bool(words) and words[-1].count("`") % 2 == 1
        if is_inside and len(words[-1]) + 1 + len(word) <= width:
            words[-1] += f" {word}"
        else:
            words.append(word)
    return words


class OutputFailed(OSError):
    """The output cannot be written, for a reason other than a closed pipe."""


class Stream(io.BufferedWriter):
    """A standard stream that accepts all writes, and keeps the first error.

    After that error, its descriptor leads to /dev/null, also for child processes.
    """

    def __init__(self, number: int) -> None:
        super().__init__(io.FileIO(number, "w", closefd=False))
        self.stops = False
        """Whether the first error is raised."""
        self.lost: OSError | None = None
        """Why output was lost, if it was."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Accept some bytes, which may be buffered until the next :meth:`flush`."""
        try:
            return super().write(data)
        except BlockingIOError as error:
            # What was accepted must not be written twice.
            done = error.characters_written
            self.flush()
            return done + self.write(memoryview(data)[done:])
        except OSError as error:
            self._lose(error)
            return memoryview(data).nbytes

    def flush(self) -> None:
        """Write the buffered bytes."""
        while True:
            try:
                return super().flush()
            except BlockingIOError:
                # A non-blocking pipe accepts nothing while it is full.
                import select  # rare

                select.select([], [self.fileno()], [])
            except OSError as error:
                self._lose(error)

    def _lose(self, error: OSError) -> None:
        """Drop all output from now on."""
        if self.lost is not None:
            raise error  # not even /dev/null can be opened
        self.lost = error
        # The descriptor itself is replaced, not only this object: children inherit the descriptor.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        if self.stops and isinstance(error, BrokenPipeError):
            raise error
        if self.stops:
            raise OutputFailed(error.errno, error.strerror) from error


def open_streams() -> None:
    """Open every standard stream, and drop output that cannot be written.

    A stream that was closed when the program started (``>&-``) is opened on /dev/null. Otherwise
    the next file to be opened, perhaps a file of the store, would get its descriptor number, and
    printed text would end up in that file.
    """
    # In this order: open() returns the lowest free number.
    for number in range(3):
        _fill(number)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 -- open as long as we run
    sys.stdout = _text(STDOUT, sys.stdout)
    sys.stderr = _text(STDERR, sys.stderr)


def stop_when_closed() -> None:
    """End this command, which only prints, when its output cannot be written."""
    if (stream := _stream()) is not None:
        stream.stops = True


def lost_output() -> OSError | None:
    """Return why output was lost, if it was."""
    stream = _stream()
    return None if stream is None else stream.lost


def lost_reason() -> str | None:
    """Return why output was lost, unless the reader closed the pipe and does not expect any."""
    lost = lost_output()
    return None if lost is None or lost.errno == errno.EPIPE else lost.strerror


def warn_of_lost_output() -> None:
    """Report on standard error that a command succeeded without its output."""
    if (reason := lost_reason()) is not None:
        said = f"Warning: the command succeeded, but its output could not be written: {reason}."
        print(said, file=sys.stderr)


def _stream() -> Stream | None:
    found = getattr(sys.stdout, "buffer", None)
    return found if isinstance(found, Stream) else None


def _fill(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        made = os.open(os.devnull, os.O_RDWR)
        if made != number:
            os.dup2(made, number)
            os.close(made)
        os.set_inheritable(number, True)  # inherited by agents, like the other streams


def _text(number: int, old: TextIO | None) -> TextIO:
    """Return a text stream over a standard stream, in the encoding of the original one.

    Characters outside that encoding are escaped: no command may fail because of its output.
    """
    return io.TextIOWrapper(
        Stream(number),
        encoding=getattr(old, "encoding", None) or "utf-8",
        errors="backslashreplace",
        line_buffering=getattr(old, "line_buffering", False),
    )
