"""The standard streams of a command, whose work is done whether its output is read or not.

``mulligan restore X | head -1`` closes the pipe after a line. All that commands print passes
through :class:`Stream`, which forgets the output that cannot be written. Only a command that does
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
    """The output cannot be written, for another reason than a reader that is gone."""


class Stream(io.BufferedWriter):
    """A standard stream that takes whatever is written, and keeps the first error.

    From that error on its descriptor leads nowhere, for the programs that are started, too.
    """

    def __init__(self, number: int) -> None:
        super().__init__(io.FileIO(number, "w", closefd=False))
        self.stops = False
        """Whether the first error is raised."""
        self.lost: OSError | None = None
        """Why output was lost, if it was."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Take some bytes, which may stay here until the next :meth:`flush`."""
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
        """Write what was taken."""
        while True:
            try:
                return super().flush()
            except BlockingIOError:
                # A pipe that does not block takes nothing while it is full.
                select.select([], [self.fileno()], [])
            except OSError as error:
                self._lose(error)

    def _lose(self, error: OSError) -> None:
        """Forget all output from now on."""
        if self.lost is not None:
            raise error  # not even /dev/null takes it
        self.lost = error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        if self.stops and isinstance(error, BrokenPipeError):
            raise error
        if self.stops:
            raise OutputFailed(error.errno, error.strerror) from error


def open_streams() -> None:
    """Let every standard stream be open, and lose what cannot be written.

    A stream that was closed when the program started (``>&-``) leads nowhere. Left closed, its
    number would go to the next file that is opened, a file of the store perhaps, and whatever is
    printed would end up there.
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
    """Return why output was lost that somebody may still wait for; a reader who left does not."""
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
        os.set_inheritable(number, True)  # for the agents, as the others are


def _text(number: int, old: TextIO | None) -> TextIO:
    """Return a stream for text over a standard stream, in the encoding of the one that was there.

    What that encoding does not have is written out: no work may fail because of how it is told.
    """
    return io.TextIOWrapper(
        Stream(number),
        encoding=getattr(old, "encoding", None) or "utf-8",
        errors="backslashreplace",
        line_buffering=getattr(old, "line_buffering", False),
    )
