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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3

from mulligan import layout
from mulligan.errors import DamageError, NotAStore, RestorePending, StoreInUse, UnsafeWorkspace
from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.locate.find import agree, find_in, leave, sweep
from mulligan.locate.git import exclude, guard
from mulligan.locate.pointer import write_pointer
from mulligan.locate.project import forget_project, project_of, remember
from mulligan.locate.registry import (
    discard,
    note_inside,
    place_for,
    publish,
    staged,
    state_directory,
)
from mulligan.opener import open_store

_BLOCK = 1 << 20
"""Bytes per read: enough that system calls cost nothing, little enough for any machine."""

_LEFT = {"tmp", layout.LOCKS, ".git", layout.MOVED}
"""Not copied: recreated on demand, or tied to the place rather than to the store."""


def move_store(store: Path, variables: Mapping[str, str], *, inside: bool) -> Path:
    """Move a store into its project or out of it; return where it is now.

    Nothing happens if it is there already. Raises ``RestorePending`` while a restore of files is
    pending, ``StoreInUse`` while another process has the store open, and ``UnsafeWorkspace`` if
    the project does not point back to the store.
    """
    state = state_directory(variables)
    # Opened and closed before the exclusive lock is taken: closing the journal later would release
    # that lock.
    _refuse_pending(store, variables)
    if (store.name == layout.NAME) == inside:
        return store
    if inside:
        return move_inside(store, _project(store, state), state)
    return move_outside(store, state)


def _refuse_pending(store: Path, variables: Mapping[str, str]) -> None:
    """Refuse a store with a pending restore: its locks do not move with it."""
    with open_store(store, variables, False, (), None, ignore, read_only=True) as opened:
        pending = [session.name for session in opened.sessions() if session.files.pending]
    if pending:
        raise RestorePending(
            f"A restore of files is pending in {', '.join(pending)}.",
            hint="Nothing was moved. `mulligan status` says more; finish or undo it first.",
        )


def _project(store: Path, state: Path) -> Path:
    """Return the directory of a store's project.

    Raises ``UnsafeWorkspace`` unless that directory points back to the store.
    """
    place = project_of(store)
    found = find_in(Path(place.path), state, write=True) if place else None
    if found is None or found.pointer is None or not agree(store, found.pointer):
        where = f"{place.path} does not point back to it" if place else "it knows no project"
        raise UnsafeWorkspace(
            f"The store {store} cannot be moved into its project: {where}.",
            hint="Nothing was moved. `mulligan init --adopt STORE` gives it a project.",
        )
    return found.directory


def move_outside(store: Path, state: Path, failpoint: FailpointHook = ignore) -> Path:
    """Move the store inside a project below the state directory; return its new path."""
    project = store.parent
    with _translated(state), staged(state) as staging, alone(store):
        sweep(project)
        _copy(store, staging)
        remember(staging, project)
        failpoint(Failpoint.MOVE_COPIED)
        # Chosen under the lock of ``staged``, so that no other process takes the name.
        target = place_for(state, project, layout.read_format(store).id)
        # After the copy is durable, and before it has its name: at no moment are there two stores
        # that commands may find, and the old one says where to look.
        _announce(store, target, failpoint)
        publish(staging, target)
        failpoint(Failpoint.MOVE_DONE)
        # Last: until the rename the old store is the valid one, and after it readers follow MOVED.
        leave(store)
        failpoint(Failpoint.MOVE_OLD_REMOVED)
        write_pointer(project, str(target), None, failpoint)
    return target


def move_inside(store: Path, project: Path, state: Path, failpoint: FailpointHook = ignore) -> Path:
    """Move a store into the directory of its project; return its new path."""
    target = project / layout.NAME
    with _translated(project), staged(state), alone(store):
        sweep(project)
        # Before the store appears in the work tree, where git could add it.
        exclude(project)
        staging = project / f"{layout.STAGING}-{os.urandom(8).hex()}"
        staging.mkdir(mode=0o700)
        # While it is locked, no other process deletes it as abandoned; see ``locate.find.sweep``.
        handle = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            _copy(store, staging)
            # In the copy alone: until it is in place, the old store is the one that commands find.
            forget_project(staging)
            failpoint(Failpoint.MOVE_COPIED)
            _announce(store, target, failpoint)
            # If the process is killed here, the store still knows its project, and the pointer is
            # recreated.
            target.unlink(missing_ok=True)
            publish(staging, target)
        finally:
            if staging.exists():
                layout.remove_tree(staging)
            os.close(handle)
        failpoint(Failpoint.MOVE_DONE)
        guard(target)
        note_inside(state, target)
        # The old store still leads readers to the new one until here.
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
    temporary = store / "tmp" / f"{layout.MOVED}.{os.urandom(8).hex()}"
    temporary.parent.mkdir(mode=0o700, exist_ok=True)  # tmp/ may be deleted at any time
    layout.write_file(temporary, os.fsencode(target) + b"\n")
    temporary.replace(store / layout.MOVED)
    # Before the copy gets its name: readers of the old path must find the new store from then on.
    layout.sync_directory(store)
    failpoint(Failpoint.MOVE_ANNOUNCED)


def _copy(store: Path, staging: Path) -> None:
    """Copy a store and compare the copy; everything is durable on return."""
    staging.mkdir(mode=0o700, exist_ok=True)
    directories = [staging]
    for source in sorted(_contents(store)):
        copy = staging / source.relative_to(store)
        if source.is_dir():
            copy.mkdir(mode=0o700)
            directories.append(copy)
        # Read back and compare before the original is given up.
        elif _copy_file(source, copy) != _digest(copy):
            raise DamageError(f"The copy of {source} is not what was written; nothing was moved.")
    for name in ("tmp", layout.LOCKS):
        (staging / name).mkdir(mode=0o700)
    _copy_notes(store / "tmp", staging / "tmp")
    # Names become durable after their files, and before MOVED points here.
    for directory in (*directories, staging / "tmp"):
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
        # The old store is deleted after the move, so the copy has to be durable before it.
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
