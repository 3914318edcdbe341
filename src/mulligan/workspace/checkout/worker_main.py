"""The program of a checkout worker: write the files of the batches it takes from a queue.

It inherits nothing from the caller but two open files, the root and the request, and the queue as
its standard input. It reads the packs itself and verifies every object like any other reader. Its
answer lists, per batch, the files it did not write; the caller writes them or reports why not.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import msgspec

from mulligan.failpoints import Failpoint
from mulligan.model import Digest, Location, ObjectKind
from mulligan.objects.background import Helper
from mulligan.objects.pack_reader import PackReader
from mulligan.workspace.checkout.checkout_plan import DirectoryNode, Made, SingleChunkFile
from mulligan.workspace.checkout.file_writer import FileWriter
from mulligan.workspace.fsync import Syncer

LENGTH = struct.Struct(">I")
"""The length of the header, at the start of a request."""

TOKEN = struct.Struct(">IQI")
"""A batch in the queue: its number, and its offset and length in the request."""

DONE = struct.Struct(">II")
"""Start of an answer: the number of a batch, and how many of its files were not written."""

LEFT = struct.Struct(">I")
"""The number of a file in its batch."""

HeldBy = tuple[bytes, Location, list[tuple[int, bytes, int, int]]]
"""An object, and its files: the numbers of their directories, names, modes and times."""


class RequestHeader(msgspec.Struct, array_like=True, frozen=True):
    """The start of a request."""

    caller: int
    source: bytes
    """Where the objects are; see ``Locations``."""
    directories: list[tuple[int, bytes]]
    """For each directory the number of its parent, and its name; the root is number 0."""
    syncs: bool
    """Whether files have to be durable before a batch counts as done; else the caller syncs."""


decode_head = msgspec.msgpack.Decoder(RequestHeader).decode
decode_batch = msgspec.msgpack.Decoder(list[HeldBy]).decode


class CheckoutWorker:
    """Makes files in the directories of one request."""

    def __init__(self, head: RequestHeader, root: int) -> None:
        self._caller = head.caller
        self._reader = PackReader(Path(os.fsdecode(head.source)), Helper())
        self._syncer = Syncer(self._unsynced, lambda _: not head.syncs)
        self._writer = FileWriter(self._stay, self._syncer, inherits=False)
        self._left: list[SingleChunkFile] = []
        self._nodes = [DirectoryNode(handle=root)]
        for above, name in head.directories:
            self._nodes.append(DirectoryNode(self._nodes[above], name))

    def copy(self, batch: list[HeldBy]) -> list[int]:
        """Write the files of a batch and return the numbers of those that failed."""
        places = [(Digest(digest), location) for digest, location, _ in batch]
        files_by_digest = {Digest(digest): self._targets(files) for digest, _, files in batch}
        # Numbered before the writer removes the files it has written.
        every = [target for files in files_by_digest.values() for target in files]
        self._left = []
        found = self._reader.read_all(ObjectKind.CHUNK, places)
        self._writer.make_all(found, files_by_digest, lambda target, _: self._left.append(target))
        # Before the answer: with ``syncs``, a file that is reported as written is durable.
        self._syncer.flush()
        self._left += [target for files in files_by_digest.values() for target in files]
        return sorted(map(every.index, self._left))

    def _unsynced(self, made: Made, _: OSError) -> None:
        """Leave a file to the caller, which writes it again: a repeated fsync proves nothing."""
        if isinstance(made, SingleChunkFile):
            self._writer.remove(made)
            self._left.append(made)

    def _targets(self, files: list[tuple[int, bytes, int, int]]) -> list[SingleChunkFile]:
        nodes = self._nodes
        return [
            SingleChunkFile(nodes[number], name, mode, mtime) for number, name, mode, mtime in files
        ]

    def _stay(self, _: Failpoint) -> None:
        """Exit once the caller has ended: its work is no longer needed."""
        if os.getppid() != self._caller:
            raise SystemExit(1)


def run(root: int, request: int, queue: int, answers: int) -> None:
    """Process batches until the queue is empty."""
    worker = None
    while token := os.read(queue, TOKEN.size):
        if worker is None:  # the request is written while this program starts
            worker = CheckoutWorker(_request_header(request), root)
        number, offset, length = TOKEN.unpack(token)
        left = worker.copy(decode_batch(os.pread(request, length, offset)))
        # An answer that a kill cuts short counts as unfinished.
        os.write(answers, DONE.pack(number, len(left)) + b"".join(map(LEFT.pack, left)))


def _request_header(request: int) -> RequestHeader:
    (length,) = LENGTH.unpack(os.pread(request, LENGTH.size, 0))
    return decode_head(os.pread(request, length, LENGTH.size))
