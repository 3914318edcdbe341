"""The scratch directory of a drill: noted before it is made, removed afterwards.

A note in the store's ``tmp/`` names the directory, and is locked while its process lives. So the
next drill removes what a killed one left, wherever that was made.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from mulligan.decoding import ready
from mulligan.engine import Engine
from mulligan.errors import DiskFull, UnsafeWorkspace
from mulligan.failpoints import Failpoint
from mulligan.layout import STAGING, remove_tree
from mulligan.locked_notes import close_note, left_note, write_note
from mulligan.owner import make_directory
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
        with suppress(OSError), left_note(file) as is_left:
            if is_left:
                _remove_noted(file)


def _base(engine: Engine, where: Path | None) -> Path:
    if where is None:
        if engine.directory is None:
            return Path(tempfile.gettempdir())
        made = engine.directory / "tmp"
        make_directory(made)  # tmp/ may be deleted at any time
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
    note = _Note(to_name(os.fsencode(scratch.path)))
    handle = write_note(file, msgspec.json.encode(note))
    try:
        engine.failpoint(Failpoint.DRILL_NOTED)
        yield
    finally:
        # A directory that could not be removed keeps its note, by which the next drill finds it.
        if not os.path.lexists(scratch.path):
            with suppress(OSError):  # a note of nothing is removed by the next drill
                file.unlink()
        close_note(handle)


def _remove_noted(file: Path) -> None:
    """Remove the directory that a note names, then the note."""
    try:
        note = msgspec.json.decode(file.read_bytes(), type=ready(_Note))
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
