"""How much address space the journal's map takes: a terabyte, or what a memory limit allows.

The map has to hold the whole file. A large map costs nothing, because the file grows only as it is
used. But address space can be limited (``ulimit -v``); then a small map is used and grown.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

from mulligan.errors import MemoryLimit

MAP_SIZE = 1 << 40
"""The address space that is reserved without a limit."""

FRACTION_OF_LIMIT = 4
"""The map takes at most this fraction of the address space that a process may use."""

MIN_ROOM_BYTES = 16 << 20
"""A map for writing has at least this many bytes more than the file."""

_MIB = 1 << 20


def map_sizes(file: Path, *, read_only: bool) -> Iterator[int]:
    """Yield the sizes of a map that are worth trying, the largest first."""
    least = _least(file, read_only)
    size = MAP_SIZE
    limit = _limit()
    if limit is not None:
        size = min(size, 1 << max(0, (limit // FRACTION_OF_LIMIT).bit_length() - 1))
    while size > least:
        yield size
        # A failed attempt is cheap, and a quarter is still far more than most journals need.
        size //= 4
    yield least


def needs_growth(size: int, used: int) -> bool:
    """Whether a map has less room left than a transaction may need."""
    return size - used < max(MIN_ROOM_BYTES // 2, used // 4)


def too_little_memory(file: Path, *, read_only: bool) -> MemoryLimit:
    """Return the error for a map that cannot be allocated."""
    least, limit = _least(file, read_only) >> 20, _limit()
    said = "the system refuses it" if limit is None else f"the limit is {limit >> 20} MiB"
    return MemoryLimit(
        f"The journal needs {least} MiB of address space to be opened, and {said}.",
        hint="Nothing was changed. Raise the limit (`ulimit -v`), then try again.",
    )


def _least(file: Path, read_only: bool) -> int:
    size = file.stat().st_size if file.exists() else 0
    return (size + (_MIB if read_only else size // 2 + MIN_ROOM_BYTES)) // _MIB * _MIB


def _limit() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft
