"""The scratch directory of a drill: noted before it is made, removed afterwards.

A note in the store's ``tmp/`` names the directory, and is locked while its process lives. So the
next drill removes what a killed one left, wherever that was made.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from mulligan.engine import Engine
from mulligan.errors import DiskFull, UnsafeWorkspace
from mulligan.failpoints import Failpoint
from mulligan.layout import STAGING, remove_tree, sync_directory, write_all
from mulligan.workspace.entries import from_name, to_name
from mulligan.workspace.restore.fileops import is_disk_full

DRILLING = f"{STAGING}-drill-"
"""Prefix of the names of scratch directories; captures leave such names out."""

DRILL_NOTES = "drill-*"
"""Names in ``tmp/`` of the notes about scratch directories."""


class ScratchDirectory:
    """A directory for one drill; ``leftover`` is its path if it could not be removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.leftover: str | None = None


class _Note(msgspec.Struct, frozen=True):
    """Where a scratch directory is; a name of chapter 7 of FORMAT."""

    directory: str


@contextmanager
def scratch_directory(engine: Engine, where: Path | None = None) -> Iterator[ScratchDirectory]:
    """Make an empty directory and remove it at the end, whatever happens.

    It is made in the directory ``where``, or in the store's ``tmp/``. One that cannot be removed
    stays noted, and the next drill tries again.
    """
    remove_leftovers(engine)
    token = os.urandom(8).hex()
    scratch = ScratchDirectory(_base(engine, where) / f"{DRILLING}{token}")
    with _space_in(scratch.path.parent), _noted(engine, token, scratch):
        scratch.path.mkdir(mode=0o700)
        try:
            engine.failpoint(Failpoint.DRILL_DIRECTORY_MADE)
            yield scratch
        finally:
            try:
                _remove(scratch.path)
            except OSError:
                # Reported in the result; it must hide neither that nor the error in flight.
                if os.path.lexists(scratch.path):  # a command may have removed it itself
                    scratch.leftover = str(scratch.path)
            engine.failpoint(Failpoint.DRILL_REMOVED)


def remove_leftovers(engine: Engine) -> None:
    """Remove the scratch directories of drills whose process died.

    What cannot be removed now stays noted, for the next time.
    """
    if engine.directory is None:
        return
    for file in sorted((engine.directory / "tmp").glob(DRILL_NOTES)):
        # What cannot be removed now stays noted; it must not keep this drill from running.
        with suppress(OSError), _locked(file) as is_left:
            if is_left:
                _remove_noted(file)


def _base(engine: Engine, where: Path | None) -> Path:
    if where is None:
        if engine.directory is None:
            return Path(tempfile.gettempdir())
        made = engine.directory / "tmp"
        made.mkdir(mode=0o700, exist_ok=True)  # tmp/ may be deleted at any time
        return made.resolve()
    if not where.is_dir():
        raise UnsafeWorkspace(
            f"{where} is not a directory.", hint="Name a directory with space for the files."
        )
    return where.resolve()


@contextmanager
def _space_in(place: Path) -> Iterator[None]:
    """Say where there is no space."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise DiskFull(f"There is no space left for the files of the drill in {place}.") from error


@contextmanager
def _noted(engine: Engine, token: str, scratch: ScratchDirectory) -> Iterator[None]:
    """Keep a durable, locked note of a scratch directory for as long as it may exist."""
    if engine.directory is None:
        yield
        return
    engine.check_present()
    file = engine.directory / "tmp" / f"drill-{token}"
    file.parent.mkdir(mode=0o700, exist_ok=True)
    handle = _write_note(file, _Note(to_name(os.fsencode(scratch.path))))
    try:
        engine.failpoint(Failpoint.DRILL_NOTED)
        yield
    finally:
        # A directory that could not be removed keeps its note, by which the next drill finds it.
        if not os.path.lexists(scratch.path):
            with suppress(OSError):  # a note of nothing is removed by the next drill
                file.unlink()
        fcntl.flock(handle, fcntl.LOCK_UN)  # a process forked off meanwhile shares the lock
        os.close(handle)


def _write_note(file: Path, note: _Note) -> int:
    """Make a note durable and return its locked handle."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Locked before anything is in it: a drill that finds the note must not take it for that
        # of a dead process.
        fcntl.flock(handle, fcntl.LOCK_EX)
        write_all(handle, msgspec.json.encode(note))
        # Durable before the directory is made: after a power cut, every scratch directory has its
        # note.
        os.fsync(handle)
        sync_directory(file.parent)
    except BaseException:
        file.unlink(missing_ok=True)
        os.close(handle)
        raise
    return handle


@contextmanager
def _locked(file: Path) -> Iterator[bool]:
    """Hold the lock of a note; yields False while its process lives, or has just removed it."""
    handle = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            # Never wait: the other drill may run for minutes.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield os.fstat(handle).st_nlink > 0
    finally:
        os.close(handle)


def _remove_noted(file: Path) -> None:
    """Remove the directory that a note names, then the note."""
    try:
        note = msgspec.json.decode(file.read_bytes(), type=_Note)
    except msgspec.DecodeError:
        note = None  # its process died before it made anything
    if note is not None:
        directory = Path(os.fsdecode(from_name(note.directory)))
        # Nothing but a scratch directory is ever removed, whatever a damaged note says.
        if directory.name.startswith(DRILLING) and directory.is_dir():
            _remove(directory)
    file.unlink()


def _remove(directory: Path) -> None:
    """Remove a directory whose content may be closed to writing."""
    directory.chmod(0o700)
    for _, names, _, handle in os.fwalk(directory):
        for name in names:
            if stat.S_ISDIR(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
                os.chmod(name, 0o700, dir_fd=handle)
    remove_tree(directory)
