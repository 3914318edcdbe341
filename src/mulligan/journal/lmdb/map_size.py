"""Opening LMDB with a map of a terabyte, or of what a memory limit allows.

The map has to hold the whole file. A large map costs nothing, because the file grows only as it is
used. But address space can be limited (``ulimit -v``); then a small map is used and grown.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb

from mulligan.errors import MemoryLimit
from mulligan.journal.lmdb.clean_close import DATA
from mulligan.journal.lmdb.errors import READ_ONLY, error_number, translated

if TYPE_CHECKING:
    from mulligan.journal.lmdb.lockfile import LockFile

MAP_SIZE = 1 << 40
"""The address space that is reserved without a limit."""

MANY_MAPS = 64 << 40
"""Once a process has reserved this much, half of what x86-64 has, it takes smaller maps."""

SMALL_MAP = 1 << 32
"""The address space of these; a map that becomes too small is grown."""

FRACTION_OF_LIMIT = 4
"""The map takes at most this fraction of the address space that a process may use."""

MIN_ROOM_BYTES = 16 << 20
"""A map for writing has at least this many bytes more than the file."""

MAX_READERS = 1022
"""With this many slots, LMDB's lock file has 64 KiB; the default of 126 is too few for a team."""

_MAX_INITIALISATIONS = 200
"""How often opening is repeated because the lock file has to be initialised by another process."""

_MIB = 1 << 20


@contextmanager
def named(directory: Path) -> Iterator[str]:
    """Yield a name of a directory that the driver accepts while it opens the files in it."""
    try:
        str(directory).encode()
    except UnicodeEncodeError:
        # The driver takes UTF-8 alone, and the system any bytes: a descriptor stands for the path.
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{opened}"
        finally:
            os.close(opened)
    else:
        yield str(directory)


def open_map(directory: Path, lock_file: LockFile | None, *, read_only: bool) -> lmdb.Environment:
    """Open LMDB in a directory with the largest map that the process may have."""

    def attempt(size: int, lock: bool) -> lmdb.Environment:
        with named(directory) as name:
            return lmdb.open(
                name,
                map_size=size,
                # LMDB needs the number of tables beforehand; this leaves room for new ones.
                max_dbs=32,
                max_readers=MAX_READERS,
                mode=0o600,
                readonly=read_only,
                create=not read_only,
                lock=lock,
            )

    def attempt_again(size: int) -> lmdb.Environment:
        # A process was killed while it compacted the journal. The process that gets the lock alone
        # initialises the lock file; processes that share it while they wait have to release it.
        for _ in range(_MAX_INITIALISATIONS):
            try:
                return attempt(size, lock=True)
            except lmdb.InvalidError:
                if lock_file is None or not lock_file.is_invalid:
                    raise
            # After a random time: processes with the same wait would collide again.
            time.sleep(0.001 * (1 + os.urandom(1)[0] % 16))
        return attempt(size, lock=True)

    def with_or_without_lock(size: int) -> lmdb.Environment:
        try:
            return attempt_again(size)
        except lmdb.Error as error:
            if not (read_only and error_number(error) in READ_ONLY):
                raise
            # On read-only media there can be no writer, so the lock file is not needed.
            return attempt(size, lock=False)

    with translated(f"the journal in {directory}"):
        for size in map_sizes(directory / DATA, read_only=read_only):
            with suppress(lmdb.MemoryError):
                return with_or_without_lock(size)
    raise too_little_memory(directory / DATA, read_only=read_only)


def map_sizes(file: Path, *, read_only: bool) -> Iterator[int]:
    """Yield the sizes of a map that are worth trying, the largest first."""
    least = _least(file, read_only)
    size = MAP_SIZE
    limit = _limit()
    if limit is not None:
        size = min(size, 1 << max(0, (limit // FRACTION_OF_LIMIT).bit_length() - 1))
    elif _reserved() >= MANY_MAPS:
        # The last store before the end would leave nothing to the next one, nor to the program.
        size = SMALL_MAP
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


def _reserved() -> int:
    """Return how much address space this process has taken; 0 where the system does not say."""
    with suppress(OSError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
    return 0


def _limit() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft
