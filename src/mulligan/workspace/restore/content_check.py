"""Check whether files have the bytes that the store holds, whatever their times say."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

from mulligan import codec
from mulligan.codec import digest
from mulligan.document.document import Document
from mulligan.errors import MulliganError
from mulligan.model import ObjectKind
from mulligan.objects.protocol import Objects
from mulligan.workspace.capture.index import Index
from mulligan.workspace.entries import File
from mulligan.workspace.file_handles import close_file, open_file
from mulligan.workspace.restore.plan import read_entry

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def is_held(name: bytes, file: File, objects: Objects, parent: int | None = None) -> bool:
    """Whether a path is a file with exactly the bytes of an entry, all of them stored.

    False for a file that cannot be read, because unknown content must not be lost, and false if the
    store cannot return the bytes.
    """
    try:
        handle = open_file(name, _OPEN, parent)
    except OSError:
        return False
    try:
        status = os.fstat(handle)
        is_candidate = stat.S_ISREG(status.st_mode) and status.st_size == file.size
        return is_candidate and _is_equal(handle, file, objects)
    except (OSError, MulliganError):
        return False
    finally:
        close_file(handle)


def rewritten(
    root: bytes, index: Index, places: Iterable[bytes], document: Document, objects: Objects
) -> Iterator[bytes]:
    """Yield the files at and below some paths whose bytes differ from their last capture."""
    tops = list(places)
    for path, directory in index.directories.items():
        if not any(not top or path == top or path.startswith(top + b"/") for top in tops):
            continue
        base = path + b"/" if path else b""
        for name, seen in directory.leaves.items():
            entry = read_entry(document, codec.decode(seen.entry))
            file = root + b"/" + base + name
            if isinstance(entry, File) and not is_held(file, entry, objects):
                yield base + name


def _is_equal(handle: int, file: File, objects: Objects) -> bool:
    if len(file.chunks) == 1:
        # A single chunk is compared by digest, so the object itself need not be read.
        data = _read(handle, file.size)
        return digest(ObjectKind.CHUNK, data) == file.chunks[0] and objects.has(file.chunks[0])
    # Chunk boundaries are not recorded; the lengths of the chunks give them.
    for chunk in file.chunks:
        data = objects.get(ObjectKind.CHUNK, chunk)
        if _read(handle, len(data)) != data:
            return False
    # It may have grown since its stat.
    return not os.read(handle, 1)


def _read(handle: int, size: int) -> bytes:
    """Return this many bytes, or fewer at the end of the file."""
    data = os.read(handle, size)
    while len(data) < size and (more := os.read(handle, size - len(data))):
        data += more
    return data
