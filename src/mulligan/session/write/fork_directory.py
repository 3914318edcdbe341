"""The directory of a fork: made under a temporary name, and moved into place.

It is created beside the target, or inside the target if that is an empty directory. A note in the
store's ``tmp/`` names both places, and is locked while its process lives. So the next process that
opens the store for writing finds an interrupted fork: it finishes the fork if the journal has its
session, and removes it otherwise.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from mulligan.decoding import ready
from mulligan.engine import Engine
from mulligan.errors import MulliganError, ReadOnlyStore
from mulligan.failpoints import Failpoint
from mulligan.journal.protocol import View
from mulligan.layout import FORK_NOTES, FORKING, remove_tree, sync_directory
from mulligan.locked_notes import close_note, left_note, write_note
from mulligan.timeline.checkpoints import event_at
from mulligan.workspace import syscalls
from mulligan.workspace.capture.file_reader import read_xattrs
from mulligan.workspace.checkout.file_writer import DIRECTORY
from mulligan.workspace.entries import Directory, from_name, to_name
from mulligan.workspace.fsync import make_directories, sync_names
from mulligan.workspace.restore.fileops import try_xattrs


class ForkNote(msgspec.Struct, frozen=True):
    """Where a fork's directory is made and where it belongs; paths are names of chapter 7.

    ``parents`` are the directories above the target that are made for it. ``mtime`` is that of the
    directory; it is set once everything is in it.
    """

    token: str
    target: str
    parents: list[str]
    is_new: bool
    mtime: int

    @property
    def place(self) -> Path:
        """Where the directory belongs."""
        return _path(self.target)

    @property
    def staging(self) -> Path:
        """Where it is made."""
        holder = self.place.parent if self.is_new else self.place
        return holder / f"{FORKING}{self.token}"


def end_interrupted(engine: Engine) -> None:
    """Finish or remove the directories of forks whose process died.

    The note of a fork that cannot be ended now stays for the next attempt.
    """
    if engine.directory is None or engine.read_only:
        return
    for file in sorted((engine.directory / "tmp").glob(FORK_NOTES)):
        # One fork that cannot be ended must not keep the store from being opened.
        with suppress(OSError, MulliganError), left_note(file) as is_left:
            if is_left:
                _end(engine, file)


def _end(engine: Engine, file: Path) -> None:
    try:
        # A note is written and synced before anything is made: one that is cut short stands for
        # nothing.
        note = msgspec.json.decode(file.read_bytes(), type=ready(ForkNote))
    except msgspec.DecodeError:
        note = None  # its process died before it made anything
    if note is not None:
        _settle(engine, note)
    # Last: until the note is gone, every process that opens the store repeats this.
    file.unlink()


def _settle(engine: Engine, note: ForkNote) -> None:
    """Finish or remove a fork; only the journal says whether its session exists."""
    with engine.read() as view:
        is_made = _is_made(view, note)
    if is_made:
        move_into_place(engine, note)
    else:
        _remove(note)


def _is_made(view: View, note: ForkNote) -> bool:
    for record in reversed(view.sessions()):
        if record.origin is not None:
            payload = event_at(view, record.number, record.origin.seq + 1).payload
            if payload.get("draft") == note.token:
                return True
    return False


@contextmanager
def noted(engine: Engine, note: ForkNote) -> Iterator[ForkNote]:
    """Keep a durable, locked note while a fork is made; end the fork if that fails."""
    if engine.directory is None:
        try:
            yield note
        except BaseException:
            _settle(engine, note)
            raise
        return
    engine.check_present()
    if engine.read_only:
        raise ReadOnlyStore(f"The store at {engine.directory} was opened for reading.")
    file = engine.directory / "tmp" / f"fork-{note.token}"
    handle = write_note(file, msgspec.json.encode(note))
    try:
        engine.failpoint(Failpoint.FORK_NOTED)
        try:
            yield note
        except BaseException:
            # The commit may have failed after it took effect. If even this fails, the note stays.
            with suppress(OSError, MulliganError):
                _end(engine, file)
            raise
        with suppress(OSError):  # the fork is complete; the next process sees that from the note
            file.unlink()
    finally:
        close_note(handle)


def new_note(target: Path, entry: Directory | None) -> ForkNote:
    """Return the note of a directory that is to be made; ``entry`` is its own in the tree."""
    parents = [path for path in target.parents if not path.exists()]
    return ForkNote(
        token=os.urandom(8).hex(),
        target=_name(target),
        parents=[_name(path) for path in parents],
        is_new=not target.exists(),
        mtime=0 if entry is None else entry.mtime,
    )


def finish_directory(note: ForkNote, entry: Directory | None) -> None:
    """Set the attributes of a complete directory, and make it and its name durable.

    This is done before the journal has the session, so that no session can lose its files.
    """
    handle = os.open(note.staging, DIRECTORY)
    try:
        if entry is not None:
            os.fchmod(handle, entry.mode if note.is_new else 0o700)
            os.utime(handle, ns=(entry.mtime, entry.mtime))
        os.fsync(handle)
    finally:
        os.close(handle)
    sync_names([note.staging, *map(_path, note.parents)])


def make_staging(engine: Engine, note: ForkNote) -> None:
    """Make the directory under its temporary name."""
    make_directories(note.place.parent)
    note.staging.mkdir(mode=0o700)
    engine.failpoint(Failpoint.FORK_DIRECTORY_MADE)


def move_into_place(engine: Engine, note: ForkNote) -> None:
    """Move a fork's directory, or its content, to the target. Idempotent."""
    if note.staging.is_dir():
        if note.is_new:
            # Replaces only an empty directory.
            note.staging.rename(note.place)
            engine.failpoint(Failpoint.FORK_MOVED)
        else:
            _move_in(engine, note)
    # The new names are durable before the note is deleted; until then the move is repeated.
    with suppress(FileNotFoundError):  # it may have been moved away since
        if not note.is_new:
            os.utime(note.place, ns=(note.mtime, note.mtime))
            sync_directory(note.place)
        sync_names([note.place, *map(_path, note.parents)])
    engine.failpoint(Failpoint.FORK_PLACED)


def _move_in(engine: Engine, note: ForkNote) -> None:
    staging = os.open(note.staging, DIRECTORY)
    try:
        place = os.open(note.place, DIRECTORY)
        try:
            for name in map(os.fsencode, os.listdir(staging)):
                # A file that a user has put there meanwhile is not replaced, where the filesystem
                # can check that in the rename.
                if not syscalls.rename(name, name, staging, syscalls.NO_REPLACE, place):
                    os.rename(name, name, src_dir_fd=staging, dst_dir_fd=place)
                engine.failpoint(Failpoint.FORK_MOVED)
            try_xattrs(place, read_xattrs(staging))
            # Only when it is empty; a file that could not be moved stays in it, and the note with
            # it.
            note.staging.rmdir()
        finally:
            os.close(place)
    finally:
        os.close(staging)


def _remove(note: ForkNote) -> None:
    """Remove what was created for a fork, and the parent directories that are empty."""
    if note.staging.is_dir():
        _open_up(note.staging)
        remove_tree(note.staging)
    for parent in map(_path, note.parents):
        # rmdir, not a recursive deletion: a parent that is in use by now stays.
        with suppress(OSError):
            parent.rmdir()


def _open_up(directory: Path) -> None:
    """Make read-only directories writable, so that their content can be deleted."""
    directory.chmod(0o700)
    for path in directory.iterdir():
        if stat.S_ISDIR(path.lstat().st_mode):
            _open_up(path)


def _name(path: Path) -> str:
    return to_name(os.fsencode(path))


def _path(name: str) -> Path:
    return Path(os.fsdecode(from_name(name)))
