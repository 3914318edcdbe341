"""Checkout workers: processes that write part of a large checkout; the caller writes the rest.

Writing a file is a handful of system calls, and reading its object is a decompression and a digest;
threads would take turns at the interpreter's lock. A worker is a new program rather than a fork,
for the same reasons as a scan worker. All processes take batches from one queue, so a slow one
holds up nothing. If a worker fails, the caller writes its files: failures are reported in one
place, and a checkout is complete or says what it lacks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mulligan.model import Digest, Location
from mulligan.objects.protocol import Locations, Places
from mulligan.workspace import workers
from mulligan.workspace.checkout.checkout_plan import DirectoryNode, SingleChunkFile
from mulligan.workspace.checkout.worker_main import DONE, LEFT, LENGTH, TOKEN, HeldBy, RequestHeader

if TYPE_CHECKING:
    from subprocess import Popen

MIN_FILES_PER_WORKER = 5_000
"""Start one more worker for each this many files."""

MAX_WORKERS = 3
"""More workers than this would wait for each other in the kernel."""

MIN_BATCH_WEIGHT = 256
"""Minimum weight of a batch: its files, plus ``FRAME_WEIGHT`` for each of their frames."""

FRAME_WEIGHT = 8

MAX_BATCHES = 200
"""Approximate maximum, for which the pipe has room however small the system makes it."""

_PACKAGES = os.fspath(Path(__file__).parents[3])
_PROGRAM = """
import sys
sys.path[:] = sys.argv[3:]
from mulligan.workspace.checkout.worker_main import run
run(int(sys.argv[1]), int(sys.argv[2]), 0, 1)
import os
os._exit(0)
"""

_encode = msgspec.msgpack.Encoder().encode

FilesByDigest = dict[Digest, list[SingleChunkFile]]


class CheckoutWorkers:
    """Processes that write files below a root, and the queue they share with their caller."""

    def __init__(self, root: int, count: int) -> None:
        """Start this many processes; raises ``OSError`` if that fails."""
        self._batches: list[Places] = []
        self._own: set[int] = set()
        self._processes: list[Popen[bytes]] = []
        self._request = workers.nameless_file()
        self._queue, self._tokens = os.pipe()
        try:
            for _ in range(count):
                # Kept one by one: if the next start fails, those that run are ended.
                self._processes.append(self._start(root))
        except BaseException:
            self.close()
            raise

    def _start(self, root: int) -> Popen[bytes]:
        from subprocess import DEVNULL, PIPE, Popen  # slow to import; small copies never need it

        handles = root, self._request.fileno()
        paths = _PACKAGES, *filter(None, sys.path)
        # Isolated and without site: the user's environment must not run code in a worker.
        command = (sys.executable, "-I", "-S", "-c", _PROGRAM, *map(str, handles), *paths)
        return Popen(command, stdin=self._queue, stdout=PIPE, stderr=DEVNULL, pass_fds=handles)

    def offer(self, where: Locations, files_by_digest: FilesByDigest, *, syncs: bool) -> None:
        """Put the files of objects into the queue; call it once.

        With ``syncs`` the workers make their files durable; otherwise the caller does, all at once.
        """
        self._batches = _cut(where.places)
        with suppress(OSError):  # the caller writes whatever is not queued
            self._describe(where.source, files_by_digest, syncs)
        # End of file on the queue is how every process learns that no batch is left.
        os.close(self._tokens)
        self._tokens = -1

    def _describe(self, source: bytes, files_by_digest: FilesByDigest, syncs: bool) -> None:
        """Write the request; each batch is queued as soon as it is described."""
        numbers = _Numbers(files_by_digest)
        head = _encode(RequestHeader(os.getpid(), source, numbers.directories, syncs))
        at = self._request.write(LENGTH.pack(len(head)) + head)
        for number, batch in enumerate(self._batches):
            length = self._request.write(_encode(_held(batch, files_by_digest, numbers)))
            # The token announces the batch, so the batch must be readable before the token is.
            self._request.flush()
            os.write(self._tokens, TOKEN.pack(number, at, length))
            at += length

    def own(self) -> Iterator[Places]:
        """Yield the objects of batches that no worker has taken, until the queue is empty."""
        while token := os.read(self._queue, TOKEN.size):
            number = TOKEN.unpack(token)[0]
            self._own.add(number)
            yield self._batches[number]

    def settle(self, files_by_digest: FilesByDigest) -> set[Digest]:
        """Wait for the workers, and remove the files that they wrote from ``files_by_digest``.

        Return the objects of unfinished batches: some of their files may exist.
        """
        answers: dict[int, list[int]] = {}
        for process in self._processes:
            # Waits until each process has ended: only then no worker touches a file that the caller
            # writes again.
            answers.update(_answers(process.communicate()[0]))
        unfinished: set[Digest] = set()
        for number, batch in enumerate(self._batches):
            if number not in self._own and not _take_out(
                batch, answers.get(number), files_by_digest
            ):
                unfinished.update(digest for digest, _ in batch)
        return unfinished

    def close(self) -> None:
        """End the processes, whether they are done or not. Idempotent."""
        for process in self._processes:
            # Nothing is lost: unfinished files are written again by the caller, or the checkout
            # failed.
            process.kill()
            with process:
                pass
        with suppress(OSError):  # unwritten data is of no use any more
            self._request.close()
        for handle in (self._queue, self._tokens):
            if handle >= 0:
                os.close(handle)
        self._queue = self._tokens = -1


class _Numbers:
    """Number the directories of a request, parents first."""

    def __init__(self, files_by_digest: FilesByDigest) -> None:
        self.directories: list[tuple[int, bytes]] = []
        self._known: dict[DirectoryNode, int] = {}
        for files in files_by_digest.values():
            for target in files:
                self.of(target.node)

    def of(self, node: DirectoryNode) -> int:
        """Return the number of a directory; the root is 0."""
        if node.above is None:
            return 0
        number = self._known.get(node)
        if number is None:
            self.directories.append((self.of(node.above), node.name))
            number = self._known[node] = len(self.directories)
        return number


def start_checkout_workers(root: int, files: int) -> CheckoutWorkers | None:
    """Start as many workers as useful for this many files below an open directory."""
    count = min(workers.processors() - 1, MAX_WORKERS, files // MIN_FILES_PER_WORKER)
    if count < 1 or not workers.is_possible():
        return None
    try:
        return CheckoutWorkers(root, count)
    except OSError:  # the system may not allow more processes or files
        return None


def _cut(places: Places) -> list[Places]:
    """Cut sorted places into batches; objects of one frame stay together."""
    frames = [list(frame) for _, frame in groupby(places, key=_frame_of)]
    # Few enough tokens that writing them all never blocks on a full pipe while no worker reads.
    least = max(MIN_BATCH_WEIGHT, (len(places) + FRAME_WEIGHT * len(frames)) // MAX_BATCHES)
    batches: list[Places] = []
    room = 0
    for frame in frames:
        if room <= 0:
            batches.append([])
            room = least
        batches[-1] += frame
        room -= len(frame) + FRAME_WEIGHT
    return batches


def _frame_of(place: tuple[Digest, Location]) -> tuple[int, int]:
    return place[1].area, place[1].offset


def _held(batch: Places, files_by_digest: FilesByDigest, numbers: _Numbers) -> list[HeldBy]:
    """Return a batch in the form that workers read."""
    return [
        (
            digest,
            location,
            [(numbers.of(w.node), w.name, w.mode, w.mtime) for w in files_by_digest[digest]],
        )
        for digest, location in batch
    ]


def _answers(data: bytes) -> Iterator[tuple[int, list[int]]]:
    """Yield the finished batches, and the files in them that were not written."""
    at = 0
    while at + DONE.size <= len(data):
        number, count = DONE.unpack_from(data, at)
        at += DONE.size
        left = data[at : at + count * LEFT.size]
        at += len(left)
        # A worker that was killed in the middle of an answer finished no batch.
        if len(left) == count * LEFT.size:
            yield number, [number for (number,) in LEFT.iter_unpack(left)]


def _take_out(batch: Places, left: list[int] | None, files_by_digest: FilesByDigest) -> bool:
    """Remove the written files of a batch; return False if it is unknown which were written."""
    if left is None:
        return False
    files = [(digest, target) for digest, _ in batch for target in files_by_digest.pop(digest)]
    for number in left:
        digest, target = files[number]
        files_by_digest.setdefault(digest, []).append(target)
    return True
