"""Move a store into its project or out of it; safe to kill at any instruction.

A copy is written under a temporary name beside the target, synced and compared. Then the old store
records where the new one will be (its file MOVED), and one rename puts the new one there. That
rename commits the move: before it, MOVED points to nothing and the old store is valid; after it,
every reader follows MOVED to the new one (``mulligan.locate.registry.current``). The old one is
deleted last.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3

from mulligan import layout
from mulligan.errors import DamageError, NotAStore, StoreInUse
from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.locate.find import leave, sweep
from mulligan.locate.git import exclude, guard
from mulligan.locate.pointer import write_pointer
from mulligan.locate.project import forget_project, remember
from mulligan.locate.registry import discard, note_inside, place_for, publish, staged

_BLOCK = 1 << 20
_LEFT = {"tmp", layout.LOCKS, ".git", layout.MOVED}
"""Not copied: recreated on demand, or tied to the place rather than to the store."""


def move_outside(store: Path, state: Path, failpoint: FailpointHook = ignore) -> Path:
    """Move the store inside a project below the state directory; return its new path."""
    project = store.parent
    with _translated(state), staged(state) as draft, alone(store):
        sweep(project)
        _copy(store, draft)
        remember(draft, project)
        failpoint(Failpoint.MOVE_COPIED)
        target = place_for(state, project, layout.read_format(store).id)
        _announce(store, target, failpoint)
        publish(draft, target)
        failpoint(Failpoint.MOVE_DONE)
        leave(store)
        failpoint(Failpoint.MOVE_OLD_REMOVED)
        write_pointer(project, str(target), None, failpoint)
    return target


def move_inside(store: Path, project: Path, state: Path, failpoint: FailpointHook = ignore) -> Path:
    """Move a store into the directory of its project; return its new path."""
    target = project / layout.NAME
    with _translated(project), staged(state), alone(store):
        sweep(project)
        exclude(project)
        draft = project / f"{layout.STAGING}-{os.urandom(8).hex()}"
        draft.mkdir(mode=0o700)
        # While it is locked, no other process deletes it as abandoned; see ``locate.find.sweep``.
        handle = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            _copy(store, draft)
            forget_project(draft)
            failpoint(Failpoint.MOVE_COPIED)
            _announce(store, target, failpoint)
            # If the process is killed here, the store still knows its project, and the pointer is
            # recreated.
            target.unlink(missing_ok=True)
            publish(draft, target)
        finally:
            if draft.exists():
                layout.remove_tree(draft)
            os.close(handle)
        failpoint(Failpoint.MOVE_DONE)
        guard(target)
        note_inside(state, target)
        discard(store)
        failpoint(Failpoint.MOVE_OLD_REMOVED)
    return target


@contextmanager
def alone(store: Path) -> Iterator[None]:
    """Hold a store exclusively; raises ``StoreInUse`` if another process has it open.

    Every process that opens the journal holds a shared lock on the first byte of LMDB's lock file,
    and waits for a process that holds it exclusively. This process must not have the journal open
    either: closing any descriptor of the file would release the lock.
    """
    handle = os.open(store / "journal" / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            # Not waiting: other processes keep the store open for hours.
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except (BlockingIOError, PermissionError) as error:
            raise StoreInUse(f"Another process has the store {store} open.") from error
        yield
    finally:
        os.close(handle)


def _announce(store: Path, target: Path, failpoint: FailpointHook) -> None:
    """Record in a store where it will be, durably, before the copy is there."""
    draft = store / "tmp" / f"{layout.MOVED}.{os.urandom(8).hex()}"
    draft.parent.mkdir(mode=0o700, exist_ok=True)  # tmp/ may be deleted at any time
    layout.write_file(draft, os.fsencode(target) + b"\n")
    draft.replace(store / layout.MOVED)
    # Before the copy gets its name: readers of the old path must find the new store from then on.
    layout.sync_directory(store)
    failpoint(Failpoint.MOVE_ANNOUNCED)


def _copy(store: Path, draft: Path) -> None:
    """Copy a store and compare the copy; everything is durable on return."""
    draft.mkdir(mode=0o700, exist_ok=True)
    directories = [draft]
    for source in sorted(_contents(store)):
        copy = draft / source.relative_to(store)
        if source.is_dir():
            copy.mkdir(mode=0o700)
            directories.append(copy)
        # Read back and compare before the original is given up.
        elif _copy_file(source, copy) != _digest(copy):
            raise DamageError(f"The copy of {source} is not what was written; nothing was moved.")
    for name in ("tmp", layout.LOCKS):
        (draft / name).mkdir(mode=0o700)
    _copy_notes(store / "tmp", draft / "tmp")
    # Names become durable after their files, and before MOVED points here.
    for directory in (*directories, draft / "tmp"):
        layout.sync_directory(directory)


def _copy_notes(source: Path, target: Path) -> None:
    """Copy the notes about interrupted forks; without them those could not be cleaned up."""
    for note in source.glob(layout.FORK_NOTES):
        layout.write_file(target / note.name, note.read_bytes())


def _contents(store: Path) -> Iterator[Path]:
    for directory, names, files in os.walk(store):
        here = Path(directory)
        if here == store:
            names[:] = [name for name in names if name not in _LEFT]
            files = [name for name in files if name not in _LEFT]
        for name in (*names, *files):
            path = here / name
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise NotAStore(
                    f"{path} is neither a file nor a directory.",
                    hint="Nothing was moved. All of a store must be in its directory to be moved.",
                )
            if name != "lock.mdb":  # closing it would release our lock on it
                yield path


def _copy_file(source: Path, copy: Path) -> bytes:
    """Copy a file, including holes, and return the digest of what was read."""
    digest = blake3()
    handle = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with source.open("rb") as reading, open(handle, "wb") as writing:
        while block := reading.read(_BLOCK):
            digest.update(block)
            if block.strip(b"\0"):
                writing.write(block)
            else:
                writing.seek(len(block), os.SEEK_CUR)
        writing.truncate()
        writing.flush()
        os.fsync(handle)
    return digest.digest()


def _digest(file: Path) -> bytes:
    digest = blake3()
    with file.open("rb") as reading:
        while block := reading.read(_BLOCK):
            digest.update(block)
    return digest.digest()


@contextmanager
def _translated(where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise layout.translation(error, where) from error
