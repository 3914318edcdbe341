"""Scan workers: processes that stat part of a large workspace while the scan stats the rest.

A scan is one ``lstat`` after another, and threads would take turns at the interpreter's lock. A
worker is a new program rather than a fork: the caller may have threads, locks and libraries that do
not survive a fork, and a new program inherits none of them, nor any handle of a store or a watcher.
It receives what is known of its directories and answers which of them are unchanged. It writes
nothing, and if it fails, the scan checks those directories itself.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mulligan.workspace import workers
from mulligan.workspace.capture.index import STAT, SeenDirectory
from mulligan.workspace.capture.scan_worker_main import DIRECTORY, HEAD, LINKED, READY, SAME

if TYPE_CHECKING:
    from subprocess import Popen

MIN_PATHS_PER_WORKER = 15_000
"""Start one more worker for each this many paths."""

WORKER_START_PATHS = 5_000
"""Number of paths that the scan itself covers while a worker starts."""

MAX_WORKERS = 3
"""More workers than this would wait for each other in the kernel."""

_PROGRAM = Path(__file__).with_name("scan_worker_main.py")

REQUESTS_PER_WORKER = 8
"""A worker gets its share in about this many requests, so that it can start with the first."""

Known = dict[bytes, SeenDirectory]
"""Directories by their paths from the root, parents first."""


class Piece(NamedTuple):
    """Descriptions of directories by path, and the number of entries in them."""

    directories: dict[bytes, bytes]
    entries: int


class Unchanged:
    """Unchanged directories, and their leaves that have other names too."""

    def __init__(self) -> None:
        self.paths: set[bytes] = set()
        self.linked: dict[bytes, int] = {}


class ScanWorker:
    """One process that checks some of the directories in an index."""

    def __init__(self, known: Known) -> None:
        """Start the process; raises ``OSError`` if that fails."""
        from subprocess import DEVNULL, PIPE, Popen  # slow to import; small trees never need it

        self.paths: list[bytes] = []
        self._known = known
        with ExitStack() as opened:
            self._request = opened.enter_context(workers.nameless_file())
            # Keep the read end open here too: writing to a worker that has ended must not raise
            # SIGPIPE in the caller.
            read_end, self._write_end = os.pipe()
            opened.callback(os.close, self._write_end)
            opened.callback(os.close, read_end)
            number = self._request.fileno()
            command = (sys.executable, "-I", "-S", os.fspath(_PROGRAM), str(number))
            self._process: Popen[bytes] = Popen(
                command, stdin=read_end, stdout=PIPE, stderr=DEVNULL, pass_fds=(number,)
            )
            self._opened = opened.pop_all()

    def send(self, request: bytes, paths: Iterable[bytes] = ()) -> None:
        """Send a request to check some directories, described in the order of their paths."""
        self._request.write(request)
        # Flush first: the length announces bytes that the worker reads at once.
        self._request.flush()
        os.write(self._write_end, READY.pack(len(request)))
        self.paths += paths

    def end(self) -> None:
        """Signal the end of the requests."""
        os.write(self._write_end, READY.pack(0))

    def report(self, unchanged: Unchanged) -> None:
        """Wait for the answer and add what is unchanged; without an answer, nothing is."""
        data, _ = self._process.communicate()
        verdicts, linked = data[: len(self.paths)], data[len(self.paths) :]
        is_cut = len(verdicts) < len(self.paths) or len(linked) % LINKED.size
        if is_cut or self._process.returncode != 0:
            return
        with suppress(IndexError):  # an answer about directories it was not sent
            unchanged.linked |= dict(starmap(self._leaf, LINKED.iter_unpack(linked)))
            answered = zip(self.paths, verdicts, strict=True)
            unchanged.paths.update(path for path, verdict in answered if verdict == SAME[0])

    def _leaf(self, directory: int, number: int) -> tuple[bytes, int]:
        """Return the path and ctime of a leaf given by numbers."""
        path = self.paths[directory]
        name, seen = list(self._known[path].leaves.items())[number]
        return path + b"/" + name, seen.ctime

    def close(self) -> None:
        """End the process, whether it has answered or not. Idempotent."""
        self._process.kill()
        with self._opened, self._process:
            pass


def start_scan_workers(prefix: bytes, known: Known, fresh: int, entries: int) -> list[ScanWorker]:
    """Start as many workers as useful, each with its share; the caller scans the rest.

    Their directories come from the end of ``known``, so that a scan from the top reaches them last.
    """
    count = min(workers.processors() - 1, MAX_WORKERS, entries // MIN_PATHS_PER_WORKER)
    started: list[ScanWorker] = []
    if count < 1 or not workers.is_possible():
        return started
    head = HEAD.pack(fresh, len(prefix)) + prefix
    # A worker checks eight paths in the time the scan takes for seven: it has nothing else to do.
    share = (entries * 8 // 7 - WORKER_START_PATHS) // (count + 1)
    pieces = _pieces(known, fresh, share // REQUESTS_PER_WORKER + 1)
    try:
        # Start all of them first: they initialise while their requests are assembled.
        with suppress(OSError):  # the system may not allow more processes
            for _ in range(count):
                started.append(ScanWorker(known))
        for worker in started:
            worker.send(head)
            _hand_out(pieces, worker, share)
    except BaseException as error:
        for worker in started:
            worker.close()
        if not isinstance(error, OSError):
            raise
        return []  # no space for the requests
    return started


def _hand_out(pieces: Iterator[Piece], worker: ScanWorker, entries: int) -> None:
    """Send a worker directories with this many entries."""
    while entries > 0 and (piece := next(pieces, None)):
        worker.send(b"".join(piece.directories.values()), piece.directories)
        entries -= piece.entries
    worker.end()


def _pieces(known: Known, fresh: int, size: int) -> Iterator[Piece]:
    """Yield descriptions of directories with about ``size`` entries each, from last to first."""
    directories: dict[bytes, bytes] = {}
    entries = 0
    for path in reversed(known):
        seen = known[path]
        if path and seen.ctime < fresh and not seen.left_out:
            with suppress(struct.error):  # times out of range are left to the scan
                directories[path] = _description(path, seen)
                entries += len(seen.leaves) + 1
        if entries >= size:
            yield Piece(directories, entries)
            directories, entries = {}, 0


def _description(path: bytes, seen: SeenDirectory) -> bytes:
    """Return the description of a directory for a worker."""
    names = b"\0".join(seen.leaves)
    stats = b"".join([leaf.stat for leaf in seen.leaves.values()])
    if len(stats) != STAT.size * len(seen.leaves):
        raise struct.error
    lengths = len(path), len(names), len(stats)
    own = DIRECTORY.pack(seen.ino, seen.ctime, seen.mtime, *lengths)
    return b"".join((own, path, names, stats))
