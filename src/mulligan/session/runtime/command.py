"""Running a command whose output is recorded and shown at the same time."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

MAX_OUTPUT_BYTES = 4 * 2**20
"""How much is recorded of each of a command's two outputs; the rest is shown, and left out."""

READ_BYTES = 65536

Show = Callable[[int, bytes], None]
"""Is given what a command prints: 1 for standard output, 2 for standard error."""


class Ended(msgspec.Struct, frozen=True):
    """How a command ended: its exit code, negative for a signal, and what it printed."""

    exit: int
    stdout: str
    stderr: str
    is_cut: bool = False


class Stopper:
    """Stops a command from another thread: by SIGTERM, and by SIGKILL if it is asked again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._count = 0

    def stop(self) -> None:
        """Stop the command, or keep it from being started."""
        with self._lock:
            self._count += 1
            if self._process is not None:
                self._signal(self._process)

    def start(self, command: Sequence[str], directory: Path | None) -> subprocess.Popen[bytes]:
        """Start the command; raises ``InterruptedError`` if it was stopped before."""
        # Under the lock: a stop between the start and the note of it would be missed.
        with self._lock:
            if self._count:
                raise InterruptedError("stopped before it was started")
            self._process = subprocess.Popen(
                list(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=directory
            )
        return self._process

    def _signal(self, process: subprocess.Popen[bytes]) -> None:
        if self._count == 1:
            process.terminate()
        else:
            process.kill()


class _Output:
    """Reads one output of a command to its end, in a thread."""

    def __init__(self, number: int, stream: IO[bytes], show: Show) -> None:
        self._number, self._stream, self._show = number, stream, show
        self._kept = bytearray()
        self.is_cut = False
        self._thread = threading.Thread(target=self._read, daemon=True)

    def start(self) -> None:
        """Start to read and show; a second call has no effect."""
        if self._thread.ident is None:
            self._thread.start()

    def _read(self) -> None:
        while data := self._stream.read1(READ_BYTES):  # type: ignore[attr-defined]
            self._show(self._number, data)
            room = MAX_OUTPUT_BYTES - len(self._kept)
            self._kept += data[:room]
            self.is_cut = self.is_cut or len(data) > room

    def text(self) -> str:
        """Return what was read, after the end of the output."""
        self._thread.join()
        return self._kept.decode(errors="replace")


def run(
    command: Sequence[str],
    started: Callable[[int], None],
    show: Show,
    directory: Path | None = None,
    stopper: Stopper | None = None,
) -> Ended:
    """Run a command to its end; ``started`` is called with its process id.

    Ctrl-C goes to the command, too: it is waited for, and killed at the second one.
    """
    with (stopper or Stopper()).start(command, directory) as process:
        assert process.stdout is not None  # noqa: S101 -- a pipe, as asked for
        assert process.stderr is not None  # noqa: S101
        outputs = [_Output(1, process.stdout, show), _Output(2, process.stderr, show)]
        try:
            # The terminal sends Ctrl-C to the command, too; how that ends says what it did.
            with suppress(KeyboardInterrupt):
                # Before its output is shown: a process that a person has seen at work is on record.
                started(process.pid)
            code = _wait(process, outputs)
        except BaseException:
            process.kill()
            raise
        stdout, stderr = (output.text() for output in outputs)
    return Ended(code, stdout, stderr, any(output.is_cut for output in outputs))


def _wait(process: subprocess.Popen[bytes], outputs: Sequence[_Output]) -> int:
    try:
        return _wait_once(process, outputs)
    except KeyboardInterrupt:
        return _wait_once(process, outputs)


def _wait_once(process: subprocess.Popen[bytes], outputs: Sequence[_Output]) -> int:
    for output in outputs:
        output.start()
    return process.wait()
