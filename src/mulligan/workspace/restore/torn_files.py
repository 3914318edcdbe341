"""What a power cut leaves of a file that was being written: nothing, a prefix, or zeros.

Names may reach the disk before the bytes of their files. So beside a leaf there may be a swap file
that is no known entry and yet not a user's work: the successor about to be exchanged, or the old
file, with none of its bytes left.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

from mulligan.errors import MulliganError
from mulligan.model import ObjectKind
from mulligan.objects.protocol import Objects
from mulligan.workspace.entries import File

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_BLOCK = 512
"""The unit that disks write atomically: each block is either complete or missing."""

_ZEROS = bytes(_BLOCK)


def is_remains(name: bytes, parent: int, wanted: object, objects: Objects) -> bool:
    """Whether a file holds only zeros and, in the right places, bytes of the wanted entry."""
    chunks = wanted.chunks if isinstance(wanted, File) else ()
    try:
        handle = os.open(name, _OPEN, dir_fd=parent)
    except OSError:
        return False
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return False
        contents = (objects.get(ObjectKind.CHUNK, chunk) for chunk in chunks)
        return all(_is_left_of(block, whole) for block, whole in _blocks(handle, contents))
    except (OSError, MulliganError):
        return False  # unknown content must not be lost
    finally:
        os.close(handle)


def _blocks(handle: int, contents: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the blocks of a file, each with what should be there."""
    wanted, source = b"", iter(contents)
    while block := os.read(handle, _BLOCK):
        while len(wanted) < len(block) and (more := next(source, b"")):
            wanted += more
        yield block, wanted[: len(block)]
        wanted = wanted[len(block) :]


def _is_left_of(block: bytes, whole: bytes) -> bool:
    return block in (whole, _ZEROS[: len(block)])
