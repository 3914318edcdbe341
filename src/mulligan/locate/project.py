"""The directories whose files a store holds: its project, and those of its forks.

This is the store's half of an agreement; the pointer in the directory is the other. The store keeps
it in its file PROJECT. A store inside its project, as ``PROJECT/.mulligan``, does not need it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from blake3 import blake3

from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.layout import LOCKS, PROJECT, sync_directory, write_file
from mulligan.locate.identity import Identity, identity_of
from mulligan.locate.small_json import decoded, encoded
from mulligan.owner import make_directory, open_as_owner

VERSION = 1
_LOCK = "project"


class Place(msgspec.Struct, frozen=True):
    """A directory as the store last saw it; ``session`` is set for a fork."""

    path: str
    device: int
    inode: int
    born: int = 0
    session: str | None = None

    @property
    def identity(self) -> Identity:
        """The identity of the directory, whatever its path."""
        return Identity(self.device, self.inode, self.born)


class _Content(msgspec.Struct):
    version: int
    places: list[Place]
    check: str


def read_places(store: Path) -> list[Place]:
    """Return the directories that a store knows; empty if it has none, or the file is garbled.

    A garbled file is not an error: nothing is lost with it, and files are then left alone.
    """
    try:
        return _parse((store / PROJECT).read_bytes())
    except OSError:
        return []


def _parse(data: bytes) -> list[Place]:
    try:
        content = decoded(data, _Content)
    except (ValueError, RecursionError):
        return []
    if content.version != VERSION or content.check != _check(content.places):
        return []
    return content.places


def project_of(store: Path) -> Place | None:
    """Return the directory of the store's project, if the store is outside it."""
    return next((place for place in read_places(store) if place.session is None), None)


def remember(
    store: Path, directory: Path, session: str | None = None, failpoint: FailpointHook = ignore
) -> None:
    """Record a directory as the store's project or as that of a fork. Durable on return."""
    known = identity_of(directory)
    made = Place(str(directory.resolve()), known.device, known.inode, known.born, session)
    with _locked(store):
        _write(store, [made, *(known for known in _known(store) if known.session != session)])
        failpoint(Failpoint.PROJECT_WRITTEN)


def forget_project(store: Path) -> None:
    """Remove the project from a store that now lies inside it."""
    with _locked(store):
        _write(store, [place for place in _known(store) if place.session is not None])


def _known(store: Path) -> list[Place]:
    """Return what to write again; an unreadable file must raise rather than be overwritten."""
    try:
        return _parse((store / PROJECT).read_bytes())
    # Only that: an error of the disk must not look like an empty list, and drop all entries.
    except FileNotFoundError:
        return []


def _write(store: Path, places: list[Place]) -> None:
    # Not msgspec: a path may hold bytes that are not text. Python represents them as surrogates,
    # which msgspec refuses.
    import json

    content = {"version": VERSION, "places": _plain(places), "check": _check(places)}
    temporary = store / "tmp" / f"{PROJECT}.{os.urandom(8).hex()}"
    make_directory(temporary.parent)  # tmp/ may be deleted at any time
    try:
        write_file(temporary, json.dumps(content, indent=2).encode() + b"\n")
        # Renamed into place, so that a reader or a crash never sees half a file.
        temporary.replace(store / PROJECT)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    # Durable before the pointer is written: without this record, it would be refused as a copy.
    sync_directory(store)


def _plain(places: list[Place]) -> list[dict[str, object]]:
    return [msgspec.structs.asdict(place) for place in places]


def _check(places: list[Place]) -> str:
    return blake3(encoded(_plain(places))).hexdigest(length=8)


@contextmanager
def _locked(store: Path) -> Iterator[None]:
    """Lock the file for a change; a dead process holds no lock."""
    make_directory(store / LOCKS)
    handle = open_as_owner(store / LOCKS / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        # Read, change and write under one lock, or two processes would drop each other's entries.
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
