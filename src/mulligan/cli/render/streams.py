"""The standard streams: a command completes its work whether its output is read or not.

``mulligan restore X | head -1`` closes the pipe after one line. All output of commands passes
through :class:`Stream`, which drops output that cannot be written. Only a command that does
nothing but print (:func:`stop_when_closed`) ends there.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STDOUT, STDERR = 1, 2


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
                select.select([], [self.fileno()], [])
            except OSError as error:
                self._lose(error)

    def _lose(self, error: OSError) -> None:
        """Drop all output from now on."""
        if self.lost is not None:
            raise error  # not even /dev/null can be opened
        self.lost = error
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
