"""Find the store of a directory: by its pointer, inside it, or in the registry of stores.

A pointer and a store must agree before files are touched: the store knows the directory by path or
by identity, and the directory's pointer names the store. So neither a store nor a pointer from
elsewhere (a copied tree, a clone, an archive) can direct a restore at a directory that its owner
never chose.

==================  ==========================  ===========================================
the directory has   the store knows it by       then
==================  ==========================  ===========================================
a pointer           its path                    they agree, also after a new clone
a pointer           its identity alone          they agree: it was moved; the path is updated
a pointer           neither                     it is a copy, and refused for files
no pointer          its path                    they agree, and the pointer is put back
no pointer          its identity alone          the same, if its time of creation is known
==================  ==========================  ===========================================

A pointer file that was overwritten with something else counts as missing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import msgspec

from mulligan import layout
from mulligan.errors import NotAStore, StoreNotFound, UnsafeWorkspace
from mulligan.locate.identity import identity_of
from mulligan.locate.pointer import Pointer, read_pointer, write_pointer
from mulligan.locate.project import Place, read_places, remember
from mulligan.locate.registry import Known, Match, current, find_by_id, find_match, known_stores


class Note(StrEnum):
    """Something unusual about how a store was found."""

    PUT_BACK = "put back"
    """The pointer was missing and has been recreated."""

    NOT_PUT_BACK = "not put back"
    """The pointer is missing and cannot be written."""

    STASHED = "stashed"
    """The pointer is missing and stays so: ``git stash pop`` would refuse to overwrite it."""

    RENEWED = "renewed"
    """The pointer was missing, and the directory is a new one at the same path."""

    MOVED = "moved"
    """The directory has a new path."""

    STORE_MOVED = "store moved"
    """The store is no longer at the path in the pointer."""


class Found(msgspec.Struct, frozen=True):
    """The store of a directory; ``pointer`` is None for a store inside it, or the store itself."""

    store: Path
    directory: Path
    pointer: Pointer | None = None
    note: Note | None = None


def finding_text(found: Found) -> str | None:
    """Return what was unusual about how a store was found, as a sentence; None if nothing was."""
    here, store = found.directory, found.store
    said = {
        Note.PUT_BACK: f"The pointer {here}/.mulligan was missing and was written again; "
        f"the store is {store}.",
        Note.RENEWED: f"{here} is a new directory where the project of the store {store} was; "
        "that store is used, and the pointer was written again.",
        Note.NOT_PUT_BACK: f"{here} cannot be written and has no pointer; its store is {store}.",
        Note.STASHED: f"The pointer {here}/.mulligan is gone, perhaps into a git stash, and was "
        f"not written again, so that `git stash pop` works; the store is {store}.",
        Note.MOVED: f"This project was moved to {here}; its store {store} now names that path.",
        Note.STORE_MOVED: f"The store was moved to {store}; the pointer in {here} was updated.",
    }
    return None if found.note is None else said[found.note]


def nearest(start: Path, state: Path) -> Found:
    """Return the store of a directory, or of the nearest parent that has one."""
    known = None
    for directory in (start, *start.parents):
        if known is None and not (directory / layout.NAME).exists():
            known = list(known_stores(state))  # once for all directories on the way up
        # With write: a pointer that is put back now saves the search in all later calls.
        found = find_in(directory, state, write=True, known=known)
        if found is not None:
            return found
    raise StoreNotFound(f"There is no store in {start} or any directory above it.")


def new_worktree(start: Path, state: Path) -> Path | None:
    """Return the git worktree around a directory without a store, if it is to get one.

    That is one whose main work tree has a store: the hooks of that run here, too.
    """
    from mulligan.locate.git import main_work_tree, work_tree

    top, main = work_tree(start), main_work_tree(start)
    if top is None or main is None or (top / layout.NAME).exists():
        return None
    try:
        nearest(main, state)
    except StoreNotFound:
        return None
    return top


def find_in(
    directory: Path, state: Path, *, write: bool, known: Sequence[Known] | None = None
) -> Found | None:
    """Return the store of exactly this directory, or of the pointer or store at this path.

    ``known`` are all stores, for callers that look at several directories. With ``write``, pointers
    are recreated and the store records a directory that was moved. Raises ``StoreNotFound`` if the
    store of a pointer does not exist.
    """
    if directory.name == layout.NAME and directory.is_file():
        directory = directory.parent
    if directory.name == layout.NAME or _is_store(directory):
        if directory.name == layout.NAME and current(directory) != directory:
            return find_in(directory.parent, state, write=write)
        return Found(current(directory), directory.parent)
    pointer = read_pointer(directory)
    if pointer is not None:
        return _followed(pointer, state, write=write)
    inside = directory / layout.NAME
    is_garbled = _is_garbled(inside)
    if os.path.lexists(inside) and not is_garbled:
        if current(inside) == inside:
            return Found(inside, directory)
        if write:
            _delete_old(inside)
    match = find_match(state, directory, known) if directory.is_dir() else None
    if match is not None:
        return _put_back(match, directory, write=write)
    return Found(inside, directory) if is_garbled else None


def _is_store(directory: Path) -> bool:
    """Whether a directory is a store; a project may have a file named FORMAT."""
    parts = (directory / "journal", directory / "packs")
    return (directory / layout.FORMAT).is_file() and any(part.is_dir() for part in parts)


def _is_garbled(file: Path) -> bool:
    """Whether the pointer is a readable file that is not a pointer: it was overwritten."""
    return file.is_file() and not file.is_symlink() and os.access(file, os.R_OK)


def leave(store: Path) -> None:
    """Delete the old store inside a project after a move; a partial store is never found."""
    if store.is_dir():
        gone = store.with_name(f"{layout.STAGING}-{os.urandom(8).hex()}")
        # Rename first, so that a crash during the deletion leaves nothing under the store's name.
        store.rename(gone)
        layout.sync_directory(gone.parent)
        layout.remove_tree(gone)


def sweep(directory: Path) -> None:
    """Delete unfinished pointers and store copies that killed processes left behind.

    Directories of forks are cleaned up by their own store, which may be any store: only its journal
    says whether their files are needed.
    """
    for left in directory.glob(f"{layout.STAGING}*"):
        if left.name.startswith(layout.FORKING):
            continue
        with suppress(OSError):  # in use by a process, or not deletable
            handle = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                # The creator holds this lock until it is done, and a dead process holds none. So a
                # lock that can be taken proves that the file is abandoned, or that its creator has
                # not locked it yet; that one notices, and creates another.
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if left.is_dir():
                    layout.remove_tree(left)
                else:
                    left.unlink()
            finally:
                os.close(handle)


def agree(store: Path, pointer: Pointer) -> bool:
    """Whether a store and the pointer in a directory refer to each other."""
    place = _place(store, pointer)
    if place is None or not pointer.names(store):
        return False
    if place.path == str(pointer.directory):
        return True
    identity = identity_of(pointer.directory)
    return pointer.is_in_place and place.identity.matches(identity)


def copied(pointer: Pointer, store: Path) -> UnsafeWorkspace:
    """Return the error for a directory that holds the pointer of another."""
    place = _place(store, pointer)
    owner = f"holds the files of {place.path}" if place else "does not know this directory"
    return UnsafeWorkspace(
        f"{pointer.directory} has a pointer to the store {store}, which {owner}.",
        hint="Nothing was changed. If this is a copy, delete its .mulligan and run `mulligan init` "
        f"for a store of its own. If the project moved here: `mulligan init --adopt {store}`.",
    )


def _place(store: Path, pointer: Pointer) -> Place | None:
    places = read_places(store)
    return next((place for place in places if place.session == pointer.session), None)


def _followed(pointer: Pointer, state: Path, *, write: bool) -> Found:
    store, note = _store_of(pointer, state)
    place, here = _place(store, pointer), pointer.directory
    if place is None or not agree(store, pointer):
        return Found(store, here, pointer, note)
    # A bind mount can give one directory two paths at once.
    was_moved = place.path != str(here) and not _is_at(place)
    if write and (was_moved or not place.identity.matches(identity_of(here))):
        _learn(store, here, pointer.session)
    if write and (note is Note.STORE_MOVED or not pointer.is_in_place):
        _rewrite(here, store, pointer.session)
    return Found(store, here, pointer, Note.MOVED if was_moved else note)


def _store_of(pointer: Pointer, state: Path) -> tuple[Path, Note | None]:
    """Return the store that a pointer names, by path or else by id."""
    store = current(Path(pointer.store))
    is_there = (store / layout.FORMAT).is_file()
    if is_there and (pointer.id is None or layout.read_format(store).id == pointer.id):
        return store, None
    elsewhere = pointer.id and find_by_id(state, pointer.id)
    if elsewhere:
        return elsewhere, Note.STORE_MOVED
    if is_there:
        raise NotAStore(
            f"{pointer.directory / layout.NAME} points to {store}, which is a different store.",
            hint="Nothing was changed. `mulligan stores` lists all stores; `mulligan init --adopt "
            "STORE` chooses the one of this directory.",
        )
    if layout.has_packs(store):
        raise layout.without_format(store)
    raise StoreNotFound(
        f"{pointer.directory / layout.NAME} points to the store {store}, which does not exist.",
        hint="`mulligan stores` lists all stores. If it was moved: `mulligan init --adopt STORE`. "
        "If it is lost: delete .mulligan and run `mulligan init`.",
    )


def _put_back(match: Match, directory: Path, *, write: bool) -> Found:
    from mulligan.locate.git import may_be_stashed  # a missing pointer is rare

    store, session = match.store, match.place.session
    note = Note.PUT_BACK if match.same_directory else Note.RENEWED
    if not match.same_path:
        note = Note.MOVED
    is_known = match.same_path and match.same_directory
    if write:
        sweep(directory)
    # Record the directory before the pointer is written: a pointer without a matching record would
    # be refused as a copy.
    if write and not is_known:
        _learn(store, directory, session)
    if may_be_stashed(directory):
        note = Note.STASHED
    elif write and not _rewrite(directory, store, session):
        note = Note.NOT_PUT_BACK
    real, identity = directory.resolve(), layout.read_format(store).id
    pointer = Pointer(real, str(store), session, identity_of(directory), identity)
    return Found(store, directory, pointer, note)


def _delete_old(store: Path) -> None:
    with suppress(OSError):  # the new store is found through the registry anyway
        leave(store)


def _is_at(place: Place) -> bool:
    """Whether a directory is still at the path that the store recorded."""
    try:
        # By identity, not by path: another directory may have been moved to where the project was.
        return place.identity.matches(identity_of(Path(place.path)))
    except OSError:
        return False


def _learn(store: Path, directory: Path, session: str | None) -> None:
    with suppress(OSError):  # an unwritable store is found the same way next time
        remember(store, directory, session)


def _rewrite(directory: Path, store: Path, session: str | None) -> bool:
    try:
        write_pointer(directory, str(store), session)
    except OSError:
        return False  # found the same way next time
    return True
