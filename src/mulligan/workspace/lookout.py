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
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from mulligan.workspace import beside
from mulligan.workspace.index import STAT, SeenDirectory
from mulligan.workspace.lookout_main import DIRECTORY, HEAD, LINKED, SAME

if TYPE_CHECKING:
    from subprocess import Popen

WORTH = 15_000
"""One more lookout is worth its while for each so many paths."""

START = 4_000
"""At about so many paths one could have looked by the time that a lookout begins to."""

MOST = 3
"""More lookouts than this would wait for each other in the kernel."""

_PROGRAM = Path(__file__).with_name("lookout_main.py")

Known = dict[bytes, SeenDirectory]
"""Directories by their paths from the root, those that hold others before these."""


class Unchanged:
    """Directories that are as they were, and their leaves that have other names too."""

    def __init__(self) -> None:
        self.paths: set[bytes] = set()
        self.linked: dict[bytes, int] = {}


class Lookout:
    """One process that looks at some of the directories that an index knows."""

    def __init__(self, known: Known, share: dict[bytes, bytes], head: bytes) -> None:
        """Start it on directories by their descriptions; raises ``OSError`` if that fails."""
        from subprocess import DEVNULL, PIPE, Popen  # slow to import; small trees never need it

        self.paths = list(share)
        self._known = known
        with beside.nameless_file() as request:
            request.write(head + b"".join(share.values()))
            request.seek(0)
            command = (sys.executable, "-I", "-S", os.fspath(_PROGRAM))
            self._process: Popen[bytes] = Popen(command, stdin=request, stdout=PIPE, stderr=DEVNULL)

    def report(self, unchanged: Unchanged) -> None:
        """Wait for the answer and add what is as it was; nothing is when there is no answer."""
        data, _ = self._process.communicate()
        verdicts, linked = data[: len(self.paths)], data[len(self.paths) :]
        is_cut = len(verdicts) < len(self.paths) or len(linked) % LINKED.size
        if is_cut or self._process.returncode != 0:
            return
        answered = zip(self.paths, verdicts, strict=True)
        unchanged.paths.update(path for path, verdict in answered if verdict == SAME[0])
        for directory, number in LINKED.iter_unpack(linked):
            path = self.paths[directory]
            name, seen = list(self._known[path].leaves.items())[number]
            unchanged.linked[path + b"/" + name] = seen.ctime

    def close(self) -> None:
        """End it, whether it has answered or not. Idempotent."""
        self._process.kill()
        with self._process:
            pass


def start_lookouts(prefix: bytes, known: Known, fresh: int, entries: int) -> list[Lookout]:
    """Start as many as are of use, each with its share; the rest is left to the caller.

    What they get comes from the end of ``known``, so that a scan from the top meets it last.
    """
    count = min(beside.processors() - 1, MOST, entries // WORTH)
    started: list[Lookout] = []
    if count < 1 or not beside.is_possible():
        return started
    head = HEAD.pack(fresh, len(prefix)) + prefix
    shares = _shares(known, fresh, (entries - START) // (count + 1))
    with suppress(OSError):  # the system may have no room for more of them
        for share in islice(shares, count):
            started.append(Lookout(known, share, head))
    return started


def _shares(known: Known, fresh: int, size: int) -> Iterator[dict[bytes, bytes]]:
    """Yield descriptions of directories with so many entries, from the last to the first."""
    share: dict[bytes, bytes] = {}
    left = size
    for path in reversed(known):
        seen = known[path]
        if path and seen.ctime < fresh and not seen.left_out:
            with suppress(struct.error):  # times that do not fit are looked at by the scan
                share[path] = _description(path, seen)
                left -= len(seen.leaves) + 1
        if left <= 0:
            yield share
            share, left = {}, size


def _description(path: bytes, seen: SeenDirectory) -> bytes:
    """Return what a lookout has to know of a directory."""
    names = b"\0".join(seen.leaves)
    stats = b"".join([leaf.stat for leaf in seen.leaves.values()])
    if len(stats) != STAT.size * len(seen.leaves):
        raise struct.error
    lengths = len(path), len(names), len(stats)
    own = DIRECTORY.pack(seen.ino, seen.ctime, seen.mtime, *lengths)
    return b"".join((own, path, names, stats))
