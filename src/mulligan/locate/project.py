"""What a store knows of the directories whose files it holds: its project, and those of its forks.

It is the store's half of an agreement; the pointer in the directory is the other. The store keeps
it in its file PROJECT. A store inside its project, as ``PROJECT/.mulligan``, needs none for that.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from blake3 import blake3

from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.layout import LOCKS, PROJECT, sync_directory, write_file
from mulligan.locate.identity import Identity, identity_of

VERSION = 1
_LOCK = "project"


class Place(msgspec.Struct, frozen=True):
    """A directory as it was when the store last saw it; ``session`` is that of a fork."""

    path: str
    device: int
    inode: int
    born: int = 0
    session: str | None = None

    @property
    def identity(self) -> Identity:
        """What the directory is known by, whatever its name."""
        return Identity(self.device, self.inode, self.born)


class _Content(msgspec.Struct):
    version: int
    places: list[Place]
    check: str


def read_places(store: Path) -> list[Place]:
    """Return the directories that a store knows; none if it never knew any, or they are garbled.

    A garbled file is not an error: nothing is lost with it, and files are then left alone.
    """
    try:
        return _parse((store / PROJECT).read_bytes())
    except OSError:
        return []


def _parse(data: bytes) -> list[Place]:
    try:
        content = msgspec.convert(json.loads(data), _Content)
    except (ValueError, RecursionError):
        return []
    if content.version != VERSION or content.check != _check(content.places):
        return []
    return content.places


def project_of(store: Path) -> Place | None:
    """Return the directory of the store's project, if the store is outside of it."""
    return next((place for place in read_places(store) if place.session is None), None)


def remember(
    store: Path, directory: Path, session: str | None = None, failpoint: FailpointHook = ignore
) -> None:
    """Have a store know a directory as its project's, or as a fork's. Durable on return."""
    known = identity_of(directory)
    made = Place(str(directory.resolve()), known.device, known.inode, known.born, session)
    with _locked(store):
        _write(store, [made, *(known for known in _known(store) if known.session != session)])
        failpoint(Failpoint.PROJECT_WRITTEN)


def forget_project(store: Path) -> None:
    """Have a store know no project, because it lies inside of it now."""
    with _locked(store):
        _write(store, [place for place in _known(store) if place.session is not None])


def _known(store: Path) -> list[Place]:
    """Return what is to be written again; what cannot be read now must not be lost by that."""
    try:
        return _parse((store / PROJECT).read_bytes())
    except FileNotFoundError:
        return []


def _write(store: Path, places: list[Place]) -> None:
    content = {"version": VERSION, "places": _plain(places), "check": _check(places)}
    draft = store / "tmp" / f"{PROJECT}.{os.urandom(8).hex()}"
    draft.parent.mkdir(mode=0o700, exist_ok=True)  # tmp/ may be deleted at any time
    try:
        write_file(draft, json.dumps(content, indent=2).encode() + b"\n")
        draft.replace(store / PROJECT)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_directory(store)


def _plain(places: list[Place]) -> list[dict[str, object]]:
    return [msgspec.structs.asdict(place) for place in places]


def _check(places: list[Place]) -> str:
    # The json of the standard library, here and above, because a path may hold bytes that are no
    # text, which Python has as surrogates and msgspec refuses.
    return blake3(json.dumps(_plain(places)).encode()).hexdigest(length=8)


@contextmanager
def _locked(store: Path) -> Iterator[None]:
    """Be the only one who changes the file; a dead process holds no lock."""
    (store / LOCKS).mkdir(mode=0o700, exist_ok=True)
    handle = os.open(store / LOCKS / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
