"""Lookouts: processes that look at a part of a large workspace while the scan looks at the rest.

A scan is one ``lstat`` after the other, and threads would only take turns. A lookout is a program
of its own rather than a fork: the caller may have threads, locks and libraries that no fork is safe
with, and a program inherits none of them, nor any handle of a store or a watcher. It is told what
is known of its directories and answers which of them are as they were. It changes nothing, and
whatever goes wrong with it, the scan looks at those directories itself.
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

WORTH = 15_000
"""One more lookout is worth its while for each so many paths."""

START = 5_000
"""At about so many paths one could have looked by the time that a lookout begins to."""

MOST = 3
"""More lookouts than this would wait for each other in the kernel."""

_PROGRAM = Path(__file__).with_name("scan_worker_main.py")

PIECES = 8
"""In about so many parts a lookout is told of its share, and begins before it has heard all."""

Known = dict[bytes, SeenDirectory]
"""Directories by their paths from the root, those that hold others before these."""


class Piece(NamedTuple):
    """Descriptions of directories by their paths, and how many entries those have."""

    directories: dict[bytes, bytes]
    entries: int


class Unchanged:
    """Directories that are as they were, and their leaves that have other names too."""

    def __init__(self) -> None:
        self.paths: set[bytes] = set()
        self.linked: dict[bytes, int] = {}


class Lookout:
    """One process that looks at some of the directories that an index knows."""

    def __init__(self, known: Known) -> None:
        """Start it; raises ``OSError`` if that fails."""
        from subprocess import DEVNULL, PIPE, Popen  # slow to import; small trees never need it

        self.paths: list[bytes] = []
        self._known = known
        with ExitStack() as opened:
            self._request = opened.enter_context(workers.nameless_file())
            # Its reading end stays open here as well: to tell something to a lookout that has
            # ended must not end whoever told it.
            hears, self._tells = os.pipe()
            opened.callback(os.close, self._tells)
            opened.callback(os.close, hears)
            number = self._request.fileno()
            command = (sys.executable, "-I", "-S", os.fspath(_PROGRAM), str(number))
            self._process: Popen[bytes] = Popen(
                command, stdin=hears, stdout=PIPE, stderr=DEVNULL, pass_fds=(number,)
            )
            self._opened = opened.pop_all()

    def tell(self, request: bytes, paths: Iterable[bytes] = ()) -> None:
        """Have it look at some directories, described in the order of their paths."""
        self._request.write(request)
        self._request.flush()
        os.write(self._tells, READY.pack(len(request)))
        self.paths += paths

    def end(self) -> None:
        """Say that it has been told everything."""
        os.write(self._tells, READY.pack(0))

    def report(self, unchanged: Unchanged) -> None:
        """Wait for the answer and add what is as it was; nothing is when there is no answer."""
        data, _ = self._process.communicate()
        verdicts, linked = data[: len(self.paths)], data[len(self.paths) :]
        is_cut = len(verdicts) < len(self.paths) or len(linked) % LINKED.size
        if is_cut or self._process.returncode != 0:
            return
        with suppress(IndexError):  # it speaks of what it was not told of
            unchanged.linked |= dict(starmap(self._leaf, LINKED.iter_unpack(linked)))
            answered = zip(self.paths, verdicts, strict=True)
            unchanged.paths.update(path for path, verdict in answered if verdict == SAME[0])

    def _leaf(self, directory: int, number: int) -> tuple[bytes, int]:
        """Return the path of a leaf, named by numbers, and its ctime."""
        path = self.paths[directory]
        name, seen = list(self._known[path].leaves.items())[number]
        return path + b"/" + name, seen.ctime

    def close(self) -> None:
        """End it, whether it has answered or not. Idempotent."""
        self._process.kill()
        with self._opened, self._process:
            pass


def start_lookouts(prefix: bytes, known: Known, fresh: int, entries: int) -> list[Lookout]:
    """Start as many as are of use, each with its share; the rest is left to the caller.

    What they get comes from the end of ``known``, so that a scan from the top meets it last.
    """
    count = min(workers.processors() - 1, MOST, entries // WORTH)
    started: list[Lookout] = []
    if count < 1 or not workers.is_possible():
        return started
    head = HEAD.pack(fresh, len(prefix)) + prefix
    # While the scan looks at seven paths, a lookout looks at eight: it has nothing else to do.
    share = (entries * 8 // 7 - START) // (count + 1)
    pieces = _pieces(known, fresh, share // PIECES + 1)
    try:
        # All are started first: while they get ready, what they are to be told is put together.
        with suppress(OSError):  # the system may have no room for more of them
            for _ in range(count):
                started.append(Lookout(known))
        for lookout in started:
            lookout.tell(head)
            _hand_out(pieces, lookout, share)
    except BaseException as error:
        for lookout in started:
            lookout.close()
        if not isinstance(error, OSError):
            raise
        return []  # the system has no room for what they are to be told
    return started


def _hand_out(pieces: Iterator[Piece], lookout: Lookout, entries: int) -> None:
    """Tell a lookout of directories with so many entries."""
    while entries > 0 and (piece := next(pieces, None)):
        lookout.tell(b"".join(piece.directories.values()), piece.directories)
        entries -= piece.entries
    lookout.end()


def _pieces(known: Known, fresh: int, size: int) -> Iterator[Piece]:
    """Yield descriptions of directories with so many entries, from the last to the first."""
    directories: dict[bytes, bytes] = {}
    entries = 0
    for path in reversed(known):
        seen = known[path]
        if path and seen.ctime < fresh and not seen.left_out:
            with suppress(struct.error):  # times that do not fit are looked at by the scan
                directories[path] = _description(path, seen)
                entries += len(seen.leaves) + 1
        if entries >= size:
            yield Piece(directories, entries)
            directories, entries = {}, 0


def _description(path: bytes, seen: SeenDirectory) -> bytes:
    """Return what a lookout has to know of a directory."""
    names = b"\0".join(seen.leaves)
    stats = b"".join([leaf.stat for leaf in seen.leaves.values()])
    if len(stats) != STAT.size * len(seen.leaves):
        raise struct.error
    lengths = len(path), len(names), len(stats)
    own = DIRECTORY.pack(seen.ino, seen.ctime, seen.mtime, *lengths)
    return b"".join((own, path, names, stats))
